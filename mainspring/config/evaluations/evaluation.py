"""An evaluation: the run that measures a policy or an endpoint on a slice of a task set, its file,
and when a campaign measures its own policy."""

from typing import Annotated, Literal

from pydantic import Field

from mainspring.config.evaluations.task_slice import TaskSlice
from mainspring.config.run import RunConfig
from mainspring.config.section import CONCURRENCY, MANY, Section, Switch, Within
from mainspring.config.trainer import TrainerConfig
from mainspring.status import CampaignKind


class EvalSchedule(Section):
    """When and on what a campaign measures its policy."""

    every_steps: Annotated[int, Within(le=MANY)] = Field(default=20, ge=1)
    """Number of steps between two evaluations; also before the first step and after the last."""
    splits: tuple[str, ...] = ("heldout",)
    """Splits for the first and the last evaluation; in between only the first one, sampled."""
    greedy: Switch = True
    """Whether the first and the last evaluation also run the first split at temperature 0."""
    greedy_tasks: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of tasks, from the start of the split, in a greedy evaluation. Unset: all."""
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts of one evaluation that run at once."""


class EvaluationConfig(TaskSlice, RunConfig):
    kind: Literal[CampaignKind.EVAL] = Field(default=CampaignKind.EVAL, exclude=True)
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts that run at once."""


class EvaluationFile(RunConfig):
    """A file for `mainspring eval run FILE`: a campaign file, and the section [run] beside it. The
    sections that only training uses are checked, so that a mistake in them is named, and are no
    part of the evaluation."""

    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalSchedule = EvalSchedule()
    run: TaskSlice = TaskSlice()

    def config(self) -> EvaluationConfig:
        shared = {name: getattr(self, name) for name in RunConfig.model_fields}
        task_slice = {name: getattr(self.run, name) for name in TaskSlice.model_fields}
        return EvaluationConfig(**shared, **task_slice, concurrency=self.evaluation.concurrency)
