"""Section [evaluation.choose]: which of a task's rollouts an evaluation counts on."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from mainspring.config.section import Added, Section, Within

MAX_TESTS = 200
"""Bound of the tests of one task: each is run against each candidate."""
MAX_TEST_S = 3600.0


class ChooseBy(StrEnum):
    """Ways to choose among a task's rollouts, without its hidden tests."""

    MAJORITY = "majority"
    """The result that most of them have; patches count as the same if they change the same lines,
    apart from white space."""
    JUDGE = "judge"
    """The judge's score of the whole rollout."""
    TESTS = "tests"
    """Whether the last command that ran tests succeeded; of those the majority."""
    CROSS_TESTS = "cross_tests"
    """Tests that any rollout of the task wrote are run against the patch of each; the one that
    passes most of them, of those the majority. Only for tasks with a repository."""


class ChooseConfig(Section):
    """Best of n: which rollout of a task an evaluation with several `samples` counts on. Its
    results then have chosen@n beside pass@k. Only files for `mainspring eval run` have it."""

    by: ChooseBy = ChooseBy.MAJORITY
    """How one is chosen."""
    judge: str | None = None
    """Name of the judge in [judges], with `by = "judge"`. A part of the reward must have it judge
    rollouts; its weight may be 0."""
    tests_per_rollout: Annotated[int, Within(le=MAX_TESTS), Added.SINCE] = Field(default=2, ge=1)
    """With `by = "cross_tests"`: number of test files taken of one rollout, the first of its
    patch."""
    max_tests: Annotated[int, Within(le=MAX_TESTS), Added.SINCE] = Field(default=16, ge=1)
    """With `by = "cross_tests"`: number of different tests of one task, those of the first samples
    first."""
    test_timeout_s: Annotated[float, Within(le=MAX_TEST_S), Added.SINCE] = Field(
        default=120.0, gt=0
    )
    """With `by = "cross_tests"`: seconds of one test command. One that takes longer has failed."""

    @model_validator(mode="after")
    def _a_judge_is_named(self) -> Self:
        if (self.by is ChooseBy.JUDGE) is not (self.judge is not None):
            raise ValueError('judge and by = "judge" belong together: give both or none')
        return self

    @model_validator(mode="after")
    def _bounds_are_of_cross_tests(self) -> Self:
        if self.by is ChooseBy.CROSS_TESTS:
            return self
        for name in ("tests_per_rollout", "max_tests", "test_timeout_s"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f'{name} bounds what by = "cross_tests" runs, and by is "{self.by.value}": '
                    'leave it out, or set by = "cross_tests"'
                )
        return self
