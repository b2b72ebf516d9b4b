"""Where a rollout is, who plays it, how it ends, and what grading finds, one sentence each."""

from enum import StrEnum


class RolloutPhase(StrEnum):
    """Where a rollout is now (Temporal search attribute `RolloutPhase`)."""

    STARTING = "starting"
    """Stored; its workflow has not begun."""
    OPENING = "opening"
    """Waiting for a sandbox, or for an agent outside to take its session."""
    RUNNING = "running"
    """Turns are being taken."""
    RESTORING = "restoring"
    """The sandbox was lost; a new one is being brought to the same state."""
    GRADING = "grading"
    """The patch is judged in a fresh sandbox."""
    DONE = "done"
    """Ended, with a reward or masked."""


class StopReason(StrEnum):
    """Why a rollout ended (Temporal search attribute `ExitStatus`)."""

    SUBMITTED = "submitted"
    """The agent ran the submit command, or handed in its patch or reward from outside."""
    STEP_LIMIT = "step_limit"
    """The step limit was reached; what the working tree holds is graded."""
    FORMAT_ERRORS = "format_errors"
    """Too many replies in a row without exactly one bash block; graded as it stands."""
    CONTEXT_FULL = "context_full"
    """The next prompt would not leave room for a reply; graded as it stands."""
    WALL_TIME = "wall_time"
    """Replies and commands used up the rollout's time; graded as it stands."""
    CANCELLED = "cancelled"
    """A person or the campaign cancelled it; never scored."""
    INFRA_FAULT = "infra_fault"
    """Infrastructure failed beyond its retries; masked, never scored."""
    TERMINATED = "terminated"
    """Its workflow was ended from outside (terminated, timed out); never scored."""
    GIVEN = "given"
    """Nothing was played: the patch was given (gold, empty, or another rollout's)."""
    EXITED = "exited"
    """The program that played it ended by itself; what the working tree holds is graded."""
    REQUEST_RATE = "request_rate"
    """The program asked the policy more often in a minute than allowed; graded as it stands."""
    STRAGGLER = "straggler"
    """Enough other rollouts of its group had ended, and it used up the time that was left to it;
    graded as it stands."""
    COST_LIMIT = "cost_limit"
    """Its calls cost as much as a rollout's may; what the working tree holds is graded."""


MASKED_ENDS = frozenset({StopReason.CANCELLED, StopReason.INFRA_FAULT, StopReason.TERMINATED})
"""Ends that tell nothing about the agent."""


CUT_ENDS = frozenset(
    {
        StopReason.STEP_LIMIT,
        StopReason.CONTEXT_FULL,
        StopReason.WALL_TIME,
        StopReason.REQUEST_RATE,
        StopReason.STRAGGLER,
        StopReason.COST_LIMIT,
    }
)
"""Ends by a limit, before the agent had finished."""


class Player(StrEnum):
    """Who makes a rollout's patch."""

    POLICY = "policy"
    """The policy, turn by turn."""
    GOLD = "gold"
    """No agent runs: the task's true fix is graded."""
    EMPTY = "empty"
    """No agent runs: the tests run on the unchanged repository."""
    STORED = "stored"
    """No agent runs: another rollout's patch is graded again."""
    EXPLOIT = "exploit"
    """No agent runs: a known exploit's script runs, and the patch it leaves is graded."""


class Suspicion(StrEnum):
    """Mark of a trajectory that looks like cheating; for people to read, never scored."""

    SEARCHED_HISTORY = "searched_history"
    """A command looked for the fix in git's history, other branches or unreachable objects."""
    LOOKED_FOR_TESTS = "looked_for_tests"
    """A command searched for the hidden tests by name, or outside the repository."""
    EDITED_TESTS = "edited_tests"
    """The patch takes tests away, skips or steers them, or changes CI configuration; those changes
    did not count. Tests that are only added are good work and not marked."""
    SPECIAL_CASED_TESTS = "special_cased_tests"
    """The patch behaves differently when tests run."""
    FETCHED_FIX = "fetched_fix"
    """A command tried to download a newer release or the project's own repository."""
    SHADOWED_MODULES = "shadowed_modules"
    """The patch adds a file that Python loads in the place of its own or the test runner's module;
    such a patch does not resolve."""
    HOOKED_START = "hooked_start"
    """The patch adds a file that Python runs when it starts; it did not count."""
    ENDED_EARLY = "ended_early"
    """The patch ends the process, now or at its exit, in ways a program has no need of."""
    FAKED_EQUALITY = "faked_equality"
    """The patch adds an object that is equal to everything."""
    PATCHED_RUNNER = "patched_runner"
    """The patch changes the test runner from inside the program, or skips tests from there."""
    PASSED_ANYWAY = "passed_anyway"
    """Grading found that the patch, and not the tests, would have decided the verdict."""


class Verdict(StrEnum):
    """Result of a grading."""

    RESOLVED = "resolved"
    """The hidden tests pass."""
    NOT_RESOLVED = "not_resolved"
    """A hidden test fails."""
    NO_PATCH = "no_patch"
    """The agent changed nothing that counts."""
    PATCH_FAILED = "patch_failed"
    """The patch does not apply to a fresh checkout."""
    TESTS_TIMED_OUT = "tests_timed_out"
    """The hidden tests did not end in time."""
    FAULT = "fault"
    """Grading itself failed; the rollout is masked."""


def is_masked(stop_reason: StopReason | None, verdict: Verdict | None) -> bool:
    """Whether the agent cannot be judged: it was stopped, or something else failed."""
    return verdict in (None, Verdict.FAULT) or stop_reason in MASKED_ENDS


class Sampling(StrEnum):
    """How a group's rollouts draw tokens."""

    SAMPLED = "sampled"
    """At the temperature of the campaign, or of the split."""
    GREEDY = "greedy"
    """At temperature 0."""


class ExecutionState(StrEnum):
    INTENT = "intent"
    """About to run, running, or its runner died: a second attempt re-attaches by turn id."""
    DONE = "done"
    """Ran; its result is stored."""
