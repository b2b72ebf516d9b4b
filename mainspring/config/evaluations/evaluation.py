"""An evaluation: the run that measures a policy or an endpoint on a slice of a task set, its file,
and when a campaign measures its own policy."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from mainspring.config.agents.judges import JudgeScope
from mainspring.config.evaluations.choosing import ChooseConfig
from mainspring.config.evaluations.sources import EvalSource
from mainspring.config.evaluations.task_slice import TaskSlice
from mainspring.config.run import RunConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.config.section import CONCURRENCY, MANY, Added, Counts, Section, Switch, Within
from mainspring.config.trainer import TrainerConfig
from mainspring.status import CampaignKind, PolicyApi

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class EvalSampling(SamplingConfig):
    """How a campaign samples one split, by the split's name, as in [evaluation.sampling.heldout].
    What is unset is that of [policy.sampling]. A file for `mainspring eval run` has its own
    [policy.sampling], and this section is no part of it."""

    temperature: Annotated[float | None, Within()] = Field(default=None, ge=0, le=2)
    """Temperature of the sampled evaluations of the split; greedy ones have 0. Unset: 1."""


class EvalSchedule(Section):
    """When and on what a campaign measures its policy."""

    every_steps: Annotated[int, Within(le=MANY), Counts.AT_ONCE] = Field(default=20, ge=1)
    """Number of steps between two evaluations; also before the first step and after the last."""
    splits: tuple[str, ...] = ("heldout",)
    """Splits for the first and the last evaluation; in between only the first one, sampled."""
    sources: Annotated[tuple[EvalSource, ...], Added.SINCE] = ()
    """Splits of other task sources, as a list of tables [[evaluation.sources]]: they count as
    further splits, after those of `splits`, each under its name. With `splits = []` the first one
    is the split that is measured in between, too."""
    greedy: Annotated[Switch, Counts.AT_ONCE] = True
    """Whether the first and the last evaluation also run the first split at temperature 0."""
    greedy_tasks: Annotated[int | None, Within(le=MANY), Counts.AT_ONCE] = Field(default=None, ge=1)
    """Number of tasks, from the start of the split, in a greedy evaluation. Unset: all."""
    concurrency: Annotated[int, Within(le=MANY), Counts.AT_ONCE] = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts of one evaluation that run at once."""
    sampling: dict[str, EvalSampling] = Field(default_factory=dict)
    choose: ChooseConfig | None = None

    @model_validator(mode="after")
    def _sampling_is_of_its_splits(self) -> Self:
        if unknown := sorted(self.sampling.keys() - set(self.measured)):
            raise ValueError(
                f"sampling.{unknown[0]} is of no split that is measured: add it to splits, or name "
                f"one of {list(self.measured)}"
            )
        return self

    @property
    def measured(self) -> tuple[str, ...]:
        """Labels of what is measured: splits, and then names of sources."""
        return (*self.splits, *(source.label for source in self.sources))

    def source_of(self, label: str) -> EvalSource | None:
        """The source of this name; None: it is a split."""
        return next((source for source in self.sources if source.label == label), None)

    def sampling_of(self, split: str, of_policy: SamplingConfig) -> SamplingConfig:
        """Sampling of the split, where [policy.sampling] is `of_policy`."""
        own = self.sampling.get(split)
        return of_policy if own is None else own.over(of_policy)

    def temperature_of(self, split: str, *, greedy: bool) -> float:
        own = self.sampling.get(split)
        sampled = 1.0 if own is None or own.temperature is None else own.temperature
        return 0.0 if greedy else sampled


class RunSection(TaskSlice):
    """The tasks that an evaluation goes over. Only files for `mainspring eval run` have this
    section. The options `--split`, `--slice`, `--task`, `--shuffle`, `--limit` and `--n` override
    it; `--serve` sets `serve` and the model. Without a split, the only split of the task set is
    used. The positions of `slice` count first; of these tasks those that match `task` are
    shuffled; then come `limit` tasks."""

    serve: Switch = False
    """Whether the command starts an engine for policy.model on this machine, and ends it with the
    run. It listens at the address of policy.engines; with port 0 a free port is chosen, and stored
    with the run."""


class EvaluationConfig(RunSection, RunConfig):
    """Run section and all that a run of any kind has."""

    kind: Literal[CampaignKind.EVAL] = Field(default=CampaignKind.EVAL, exclude=True)
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts that run at once."""
    choose: ChooseConfig | None = None

    @model_validator(mode="after")
    def _a_judge_sees_what_is_chosen_from(self) -> Self:
        if self.choose is None or self.choose.judge is None:
            return self
        label = f"judge.{self.choose.judge}.{JudgeScope.ROLLOUT}"
        if label not in {part.label for part in self.reward.parts}:
            raise ValueError(
                f"evaluation.choose.judge = {self.choose.judge!r} judges no rollout: add a part "
                f'to [reward] with name = "judge", judge = "{self.choose.judge}" and of = '
                '"rollout" (weight = 0 leaves the reward as it is)'
            )
        return self


class EvaluationFile(RunConfig):
    """A file for `mainspring eval run FILE`: a campaign file, and the section [run] beside it. The
    sections that only training uses are checked, so that a mistake in them is named, and are no
    part of the evaluation."""

    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalSchedule = EvalSchedule()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _has_one_task_source(self) -> Self:
        if self.tasks.sets:
            raise ValueError(
                "tasks: an evaluation is of one task source, and [[tasks]] lists several: write a "
                "file for it that has [tasks] with one source"
            )
        return self

    @model_validator(mode="after")
    def _serves_here(self) -> Self:
        if not self.run.serve:
            return self
        hosts = [urlsplit(url).hostname for url in self.policy.engines]
        if self.policy.api is not PolicyApi.SGLANG or len(hosts) != 1 or hosts[0] not in LOOPBACK:
            raise ValueError(
                'run.serve starts one engine on this machine: it needs policy.api = "sglang" and '
                'one address in policy.engines, as "http://127.0.0.1:0" (0: a free port)'
            )
        return self

    def config(self) -> EvaluationConfig:
        shared = {name: getattr(self, name) for name in RunConfig.model_fields}
        task_slice = {name: getattr(self.run, name) for name in RunSection.model_fields}
        return EvaluationConfig(
            **shared,
            **task_slice,
            concurrency=self.evaluation.concurrency,
            choose=self.evaluation.choose,
        )
