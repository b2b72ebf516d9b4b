"""Section [evaluation]: when and on what a campaign measures its policy."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import CONCURRENCY, MANY, Section, Within


class EvalSchedule(Section):
    every_steps: Annotated[int, Within(le=MANY)] = Field(default=20, ge=1)
    """Number of steps between two evaluations; also before the first step and after the last."""
    splits: tuple[str, ...] = ("heldout",)
    """Splits for the first and the last evaluation; in between only the first one, sampled."""
    greedy: bool = True
    """Whether the first and the last evaluation also run the first split at temperature 0."""
    greedy_tasks: Annotated[int | None, Within(le=MANY)] = Field(default=None, ge=1)
    """Number of tasks, from the start of the split, in a greedy evaluation. Unset: all."""
    concurrency: Annotated[int, Within(le=MANY)] = Field(default=CONCURRENCY, ge=1)
    """Number of rollouts of one evaluation that run at once."""
