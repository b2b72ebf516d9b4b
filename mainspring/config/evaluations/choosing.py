"""Section [evaluation.choose]: which of a task's rollouts an evaluation counts on."""

from enum import StrEnum
from typing import Self

from pydantic import model_validator

from mainspring.config.section import Section


class ChooseBy(StrEnum):
    """Ways to choose among a task's rollouts, without its hidden tests."""

    MAJORITY = "majority"
    """The result that most of them have; patches count as the same if they change the same lines,
    apart from white space."""
    JUDGE = "judge"
    """The judge's score of the whole rollout."""
    TESTS = "tests"
    """Whether the last command that ran tests succeeded; of those the majority."""


class ChooseConfig(Section):
    """Best of n: which rollout of a task an evaluation with several `samples` counts on. Its
    results then have chosen@n beside pass@k. Only files for `mainspring eval run` have it."""

    by: ChooseBy = ChooseBy.MAJORITY
    """How one is chosen."""
    judge: str | None = None
    """Name of the judge in [judges], with `by = "judge"`. A part of the reward must have it judge
    rollouts; its weight may be 0."""

    @model_validator(mode="after")
    def _a_judge_is_named(self) -> Self:
        if (self.by is ChooseBy.JUDGE) is not (self.judge is not None):
            raise ValueError('judge and by = "judge" belong together: give both or none')
        return self
