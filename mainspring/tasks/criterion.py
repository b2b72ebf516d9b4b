"""How a task's tests are judged, and what judging one patch found. Pure data.

A judge defines how the output of a task's `test_command` becomes a verdict; the report keeps what
the verdict was made of. Imported by tasks, sources, grading and rewards.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Judge(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExitCode(_Judge):
    """Return code 0 resolves the task; for sources that name no other judge."""

    kind: Literal["exit_code"] = "exit_code"


class EvalType(StrEnum):
    """The official library's own words."""

    PASS_AND_FAIL = "pass_and_fail"
    """A test counts as passed when the log reports that it passed."""
    FAIL_ONLY = "fail_only"
    """A test counts as passed unless the log reports that it failed."""


class TestLog(_Judge):
    """The official SWE-bench library reads the log: all of both lists must pass."""

    __test__ = False  # pytest would take it for a test

    kind: Literal["test_log"] = "test_log"
    parser: str
    """Name of one of the library's log parsers."""
    eval_type: EvalType = EvalType.PASS_AND_FAIL
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    repo: str = ""
    """Some parsers want to know them."""
    version: str = ""


class RewardFile(_Judge):
    """The test command writes /logs/verifier/reward.txt (a number) or reward.json (Harbor)."""

    kind: Literal["reward_file"] = "reward_file"
    threshold: float = 1.0
    """A score of at least this resolves the task."""


Judge = Annotated[ExitCode | TestLog | RewardFile, Field(discriminator="kind")]


HANDED_IN = "handed_in"
"""A report's judge where an agent outside handed in its reward; `score` is that."""


class Canary(StrEnum):
    """Outcome of tests that must fail."""

    FAILED = "failed"
    """The tests decide."""
    PASSED = "passed"
    """Something else decides; with the true fix, too: the task's command, its tests or their
    surroundings, and such a run tells nothing about a patch."""


class GradeReport(BaseModel):
    """Facts behind a verdict; stored with it."""

    model_config = ConfigDict(frozen=True)

    judge: str = ""
    """The judge's `kind`; empty when nothing was run."""
    returncode: int | None = None
    """Return code of the test command."""
    fail_to_pass_passed: tuple[str, ...] = ()
    fail_to_pass_failed: tuple[str, ...] = ()
    pass_to_pass_passed: tuple[str, ...] = ()
    pass_to_pass_failed: tuple[str, ...] = ()
    score: float | None = None
    """Number in the reward file."""
    dropped_paths: tuple[str, ...] = ()
    """Changes that were dropped from the patch: tests, CI configuration, Python's start files,
    commits of repositories inside."""
    note: str = ""
    """Why there are no test results, where there are none, or why a pass does not count."""
    cheated: bool = False
    """The patch, and not the tests, would have decided the verdict; `note` has the reason."""
    num_run: int | None = None
    """Tests that passed or failed, as the run's summary counts them; None: it has none."""
    num_left_out: int | None = None
    """Tests that were skipped, deselected or expected to fail."""
    canary: Canary | None = None
    """After a pass, where the tests could be rewritten so that they must fail: what they did."""

    @property
    def tests_passed(self) -> float | None:
        """Share of FAIL_TO_PASS that passed, 0 when something of PASS_TO_PASS broke; the score of
        a reward file; None when neither is known."""
        if self.score is not None:
            return self.score
        num_wanted = len(self.fail_to_pass_passed) + len(self.fail_to_pass_failed)
        if num_wanted == 0:
            return None
        return 0.0 if self.pass_to_pass_failed else len(self.fail_to_pass_passed) / num_wanted


@dataclass(frozen=True, slots=True)
class References:
    """Reports of grading about a task without the patch that is graded."""

    gold: GradeReport | None = None
    """Report of the true fix, where it resolved the task."""
    empty: GradeReport | None = None
    """Report of no patch at all."""
    is_gold: bool = False
    """The patch is the true fix itself."""
