"""A campaign: the run that trains. One section for each part of it.

Invariants are those of `run`; the bundled model has a warm start, and no other has one.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from mainspring.algorithms.gap import Dtype, GapBounds, bounds
from mainspring.algorithms.schedule import Batches, Schedule
from mainspring.algorithms.set_draws import draw_of
from mainspring.config.curriculum import SHUFFLED, CurriculumConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.evaluations.sources import check_sets
from mainspring.config.files.pairs import refusals
from mainspring.config.run import RunConfig
from mainspring.config.section import BUNDLED, STORED, Counts
from mainspring.config.tasks import TaskSet
from mainspring.config.tracking import TrackingConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.parallel import FSDP, PLAIN, Device
from mainspring.programs.profiles.choice import is_program
from mainspring.status import CampaignKind, PolicyApi, Publish


class CampaignConfig(RunConfig):
    kind: Literal[CampaignKind.TRAIN] = Field(default=CampaignKind.TRAIN, exclude=True)
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalSchedule = EvalSchedule()
    curriculum: CurriculumConfig = CurriculumConfig()
    tracking: Annotated[TrackingConfig, Counts.AT_ONCE] = TrackingConfig()
    schedule: Schedule = Schedule.FASTEST
    """Order of groups. "fastest": by time. "reproducible": by number, so that the same seed gives
    the same weights on CPU, whatever was killed and whenever."""

    @model_validator(mode="before")
    @classmethod
    def _sets_have_no_other_splits(cls, raw: Any) -> Any:
        """The default splits are of the one source of [tasks]."""
        if not isinstance(raw, dict) or not isinstance(raw.get("tasks"), list | tuple):
            return raw
        evaluation = raw.get("evaluation", {})
        if not isinstance(evaluation, dict) or "splits" in evaluation:
            return raw
        return {**raw, "evaluation": {**evaluation, "splits": ()}}

    @model_validator(mode="after")
    def _settings_mean_something_together(self, info: ValidationInfo) -> Self:
        sentences = [] if info.context == STORED else refusals(self)
        if sentences:
            raise ValueError("\n".join(sentences))
        return self

    @model_validator(mode="after")
    def _can_be_reproduced(self) -> Self:
        if (sentence := self.not_reproducible()) is not None:
            raise ValueError(sentence)
        return self

    def not_reproducible(self) -> str | None:
        """The setting that keeps a reproducible schedule from being one; None: there is none, or
        the schedule is another."""
        if self.schedule is not Schedule.REPRODUCIBLE:
            return None
        trainer = self.trainer
        for what, is_fit, change in (
            ("trainer.max_staleness", trainer.max_staleness <= 1, "0 or 1"),
            ("trainer.quorum", trainer.quorum is None, "unset (time decides who is last)"),
            ("trainer.keep_checkpoints", trainer.keep_checkpoints >= 2, "2 or more"),
            ("trainer.device", trainer.device is Device.CPU, '"cpu"'),
            ("trainer.engine", trainer.engine_name in (PLAIN, FSDP), '"plain" or "fsdp"'),
            ("trainer.dtype", trainer.dtype is Dtype.FLOAT32, '"float32"'),
            ("trainer.tensor_parallel", trainer.tensor_parallel == 1, "1"),
            ("trainer.data_parallel", trainer.data_parallel == 1, "1"),
            ("curriculum.kind", self.curriculum.kind == SHUFFLED, f'"{SHUFFLED}"'),
            *(
                (f"{name}.kind", not is_program(agent), 'an agent such as "bash", no program')
                for name, agent in self.agent_sections.items()
            ),
            ("policy.api", self.policy.api is PolicyApi.SGLANG, '"sglang"'),
            ("policy.publish", self.policy.publish is not Publish.ADAPTER, '"disk"'),
            (
                "deterministic in each section of [judges]",
                all(judge.deterministic for judge in self.judges.values()),
                "true (if its votes follow from their prompts)",
            ),
        ):
            if not is_fit:
                return (
                    f'schedule = "reproducible" needs {what} = {change}, or set schedule = '
                    '"fastest"'
                )
        return None

    @property
    def adapter_rank(self) -> int:
        """Rank of the adapters that engines load; 0: they load whole models."""
        return self.trainer.lora.rank if self.policy.publish is Publish.ADAPTER else 0

    @property
    def repeats(self) -> bool:
        return self.schedule is Schedule.REPRODUCIBLE

    @property
    def batches(self) -> Batches | None:
        """Batches of a reproducible campaign."""
        if self.schedule is not Schedule.REPRODUCIBLE:
            return None
        trainer = self.trainer
        return Batches(trainer.num_steps, trainer.groups_per_step, trainer.max_staleness)

    @model_validator(mode="after")
    def _evaluations_have_one_rollout_of_a_task(self) -> Self:
        if self.evaluation.choose is not None:
            raise ValueError(
                "evaluation.choose is for files of `mainspring eval run` with several samples: a "
                "campaign's own evaluations have one rollout of each task"
            )
        return self

    @model_validator(mode="after")
    def _bundled_model_needs_a_warm_start(self) -> Self:
        if self.policy.model == BUNDLED and self.trainer.warm_start is None:
            raise ValueError(
                "policy.model = 'bundled' starts from random weights: add [trainer.warm_start]"
            )
        return self

    @model_validator(mode="after")
    def _adapters_need_a_trained_model(self) -> Self:
        self.trainer.lora.require_trained(self.policy.model)
        return self

    @model_validator(mode="after")
    def _adapters_are_there_to_publish(self) -> Self:
        if self.policy.publish is Publish.ADAPTER and not self.trainer.lora.rank:
            raise ValueError(
                'policy.publish = "adapter" needs adapters: set trainer.lora.rank, or publish = '
                '"disk"'
            )
        return self

    @model_validator(mode="after")
    def _warm_start_is_for_the_bundled_model(self, info: ValidationInfo) -> Self:
        bundled = self.policy.model == BUNDLED
        if self.trainer.warm_start is not None and not bundled and info.context != STORED:
            raise ValueError(
                f"[trainer.warm_start] would train {self.policy.model!r} on the bundled toy tasks: "
                "remove the section, or set policy.model = 'bundled'"
            )
        return self

    @property
    def gap_bounds(self) -> GapBounds:
        """Bounds of [trainer.gap], with the defaults of the engines' dtype."""
        return bounds(self.trainer.gap, self.policy.dtype)

    @property
    def splits(self) -> tuple[str, ...]:
        """Labels of the tasks that it goes over, each once: splits, and names of sources."""
        return tuple(dict.fromkeys((*self.train_labels, *self.evaluation.measured)))

    @property
    def train_labels(self) -> tuple[str, ...]:
        """Labels of the tasks that it trains on."""
        return tuple(each.label for each in self.tasks.sets) or ("train",)

    def label_of_draw(self, draw: int) -> tuple[str, int]:
        """Label of the set that draw number `draw` of the tasks takes, and the set's own number of
        that draw."""
        if not self.tasks.sets:
            return "train", draw
        place, own = draw_of([each.weight for each in self.tasks.sets], draw)
        return self.tasks.sets[place].label, own

    def order_seed(self, label: str) -> int | str:
        """Seed of the order in which the tasks under this label are gone through."""
        return f"{self.seed}/{label}" if self.tasks.sets else self.seed

    def task_set(self, label: str) -> TaskSet:
        named = (*self.tasks.sets, *self.evaluation.sources)
        source = next((each for each in named if each.label == label), None)
        if source is None:
            return super().task_set(label)
        return TaskSet(
            self.listed_as(source.source),
            source.split,
            self.size_in(source.source, source.split),
            source.limit,
            source.agent,
            source.unverified,
            source.source == BUNDLED,
        )

    @property
    def agents_of_sets(self) -> dict[str, str]:
        sets = ((label, self.task_set(label)) for label in self.splits)
        return {label: of.agent for label, of in sets if of.agent is not None}

    def in_set(self, label: str) -> Self:
        source = self.evaluation.source_of(label)
        if source is None or not source.limits:
            return self
        return self.model_copy(
            update={
                "agent": self.agent.model_copy(update=source.limits),
                "agents": {
                    name: agent.model_copy(update=source.limits)
                    for name, agent in self.agents.items()
                },
            }
        )

    def _limited_costs(self) -> list[str]:
        of_sources = [
            f"evaluation.sources.{place}"
            for place, source in enumerate(self.evaluation.sources)
            if source.cost_limit
        ]
        return [*super()._limited_costs(), *of_sources]

    @model_validator(mode="after")
    def _sources_are_told_apart(self, info: ValidationInfo) -> Self:
        if info.context == STORED:
            return self
        sets = {f"tasks.{number}": each for number, each in enumerate(self.tasks.sets)}
        sources = self.evaluation.sources
        sets |= {f"evaluation.sources.{number}": each for number, each in enumerate(sources)}
        trained = () if self.tasks.sets else ("train",)
        splits = {each: f"the split {each!r}" for each in (*trained, *self.evaluation.splits)}
        check_sets(sets, splits, self.tasks.source, self.agents, self.agent.override)
        if self.tasks.sets and self.evaluation.splits:
            raise ValueError(
                "evaluation.splits are of the one source of [tasks]: with [[tasks]] write "
                "[[evaluation.sources]], each with source and split, and no splits"
            )
        if self.tasks.sets and self.curriculum.pass_rates_of:
            raise ValueError(
                "curriculum.pass_rates_of is an evaluation of one task source: with [[tasks]] it "
                "would leave out every task of the others; leave it out"
            )
        return self
