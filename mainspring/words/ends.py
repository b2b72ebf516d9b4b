"""How a rollout ended and how it was graded, and a run's status, in words for people.

Pure. Imported by screens.
"""

from collections.abc import Iterator
from typing import Any

from mainspring.status import StopReason, Suspicion, Untrained, Verdict

SHOWN_TESTS = 10
"""Names of failed tests that are shown; --json has all."""
ENDS = {
    StopReason.SUBMITTED: "submitted by the agent",
    StopReason.STEP_LIMIT: "step limit",
    StopReason.FORMAT_ERRORS: "too many replies without one command",
    StopReason.CONTEXT_FULL: "context full",
    StopReason.WALL_TIME: "time used up",
    StopReason.CANCELLED: "cancelled",
    StopReason.INFRA_FAULT: "infrastructure failed",
    StopReason.TERMINATED: "terminated from outside",
    StopReason.EXITED: "ended by the program",
    StopReason.REQUEST_RATE: "too many requests in a minute",
    StopReason.STRAGGLER: "last of its group, its time was used up",
    StopReason.COST_LIMIT: "cost limit",
    StopReason.GIVEN: "given patch, nothing was played",
}
VERDICTS = {
    Verdict.RESOLVED: "resolved",
    Verdict.NOT_RESOLVED: "not resolved: a hidden test fails",
    Verdict.NO_PATCH: "no patch: the agent changed nothing that counts",
    Verdict.PATCH_FAILED: "the patch does not apply to a fresh checkout",
    Verdict.TESTS_TIMED_OUT: "the hidden tests did not end in time",
    Verdict.FAULT: "not scored: grading itself failed",
}
SUSPICIONS = {
    Suspicion.SEARCHED_HISTORY: "a command looked for the fix in git's history",
    Suspicion.LOOKED_FOR_TESTS: "a command searched for the hidden tests",
    Suspicion.EDITED_TESTS: "the patch removes, skips or steers tests, or changes CI files",
    Suspicion.SPECIAL_CASED_TESTS: "the patch behaves differently when tests run",
    Suspicion.FETCHED_FIX: "a command tried to download a newer release",
}
UNTRAINED = {
    Untrained.MASKED: "it has no reward",
    Untrained.NO_TOKENS: "it sampled no token",
    Untrained.OVERLONG: "a limit cut it off",
    Untrained.STALE: "its tokens are too old",
    Untrained.CRITIC_WARMUP: "the step trained the critic alone",
    Untrained.ZERO_ADVANTAGE: "its advantage is 0",
}
"""Why a step trained no token of a rollout."""


def status_words(status: str) -> str:
    """A run's status, the same on every screen; `--json` has the stored word."""
    return status.replace("_", " ")


def grade_lines(report: dict[str, Any]) -> Iterator[str]:
    """Parts of the verdict, in a few lines."""
    for name in ("fail_to_pass", "pass_to_pass"):
        passed, failed = report.get(f"{name}_passed", ()), report.get(f"{name}_failed", ())
        if passed or failed:
            yield f"  {name:24} {len(passed)} of {len(passed) + len(failed)} pass"
            yield from (f"    failed: {test}" for test in failed[:SHOWN_TESTS])
            if len(failed) > SHOWN_TESTS:
                yield f"    and {len(failed) - SHOWN_TESTS} more"
    for name in ("judge", "returncode", "score", "note"):
        if report.get(name) not in (None, ""):
            yield f"  {name:24} {report[name]}"
    if report.get("dropped_paths"):
        yield f"  {'not part of the patch':24} {', '.join(report['dropped_paths'])}"
