"""Fates after a failure: one rule for every FaultKind, in one table.

Invariant: no failure is retried without a bound. An activity that fails is tried again until its
rule makes the failure final; then a rollout is masked (its group counts it, it gets no reward), and
a campaign's own work ends the campaign with the failure's sentence. A fault whose fate is END ends
the campaign at once, also when a rollout meets it. Pure; used by the activities' interceptor
(`infra.temporal.faults`) and by the workflows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mainspring.status import FaultKind

OUTAGE_S = 24 * 3600.0
"""Time an outage may last before the work that waits for it fails: a weekend's night is survived,
a service that was switched off is noticed."""

FIRST_WAIT_S = 0.5
"""Between the first attempt and the second; each further wait is twice as long."""
LONGEST_WAIT_S = 15.0
"""At most, between two attempts."""


class Fate(StrEnum):
    RETRY = "retry"
    """Tried again with a bound. Beyond it, a rollout is masked and a campaign's own work ends the
    campaign."""
    MASK = "mask"
    """The rollout is masked: its group counts it, it is not scored. A campaign's own work ends the
    campaign."""
    END = "end"
    """Ends the campaign at once, with one sentence and the remedy: more work would be wasted."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One failure is final once every bound given here is reached; without bounds, at once.

    Temporal counts attempts that a drained or killed worker did not finish as well: a bound in
    attempts alone would be used up by restarts, therefore `attempts` stands beside `seconds`.
    """

    fate: Fate
    remedy: str
    """Remedy, for errors that bring no remedy of their own."""
    attempts: int = 1
    seconds: float = 0.0
    """Since the activity was first scheduled."""
    benign: bool = False
    """Part of normal work: Temporal logs and counts no error."""

    def is_final(self, attempt: int, waited_s: float) -> bool:
        """Whether the failure of this attempt (the first is 1) is not tried again."""
        return attempt >= self.attempts and waited_s >= self.seconds


_NODE = "look at the node's log and run `mainspring doctor` on it"
_AGAIN = "then start the campaign again: it resumes where it ended"

RULES: Mapping[FaultKind, Rule] = {
    # Retried. A lost sandbox is rebuilt by its workflow, in a new one: never by the same activity.
    FaultKind.SANDBOX_LOST: Rule(
        Fate.RETRY, f"a new sandbox is opened a bounded number of times; {_NODE}"
    ),
    FaultKind.NODE_FULL: Rule(
        Fate.RETRY, "start another node, or raise its capacity", seconds=OUTAGE_S, benign=True
    ),
    FaultKind.NODE_FAILED: Rule(Fate.RETRY, _NODE, attempts=10, seconds=600.0),
    FaultKind.CAMPAIGN_FULL: Rule(
        Fate.RETRY, "raise sandbox.max_open", seconds=OUTAGE_S, benign=True
    ),
    FaultKind.IMAGE_UNREACHABLE: Rule(
        Fate.RETRY,
        "check the registry's address and the node's free disk",
        attempts=10,
        seconds=3600.0,
    ),
    FaultKind.DATABASE_UNREACHABLE: Rule(
        Fate.RETRY, "start Postgres, or run `mainspring up`", seconds=OUTAGE_S
    ),
    FaultKind.TEMPORAL_UNREACHABLE: Rule(
        Fate.RETRY, "start Temporal, or run `mainspring up`", seconds=OUTAGE_S
    ),
    FaultKind.ENGINE_UNREACHABLE: Rule(
        Fate.RETRY,
        "start the engines of policy.engines, or correct them",
        seconds=OUTAGE_S,
    ),
    FaultKind.ENGINE_BUSY: Rule(
        Fate.RETRY, "start more engines, or lower the concurrency", seconds=OUTAGE_S, benign=True
    ),
    FaultKind.ENGINE_FAILING: Rule(
        Fate.RETRY,
        "look at the engine's log: it fails at this request, and serves others",
        attempts=10,
        seconds=900.0,
    ),
    FaultKind.ENDPOINT_REFUSING: Rule(
        # Not masked at once: it refuses all rollouts alike, and each was paid for up to here.
        Fate.RETRY,
        "correct the endpoint's key, credits, model or address: rollouts wait for it, and resume",
        seconds=OUTAGE_S,
    ),
    FaultKind.JUDGE_FAILING: Rule(
        # The activity counts the tries that `retries` of the judge allows.
        Fate.RETRY,
        "start the judge, or correct its section [judges]",
        seconds=OUTAGE_S,
        benign=True,
    ),
    FaultKind.ENVIRONMENT_UNREACHABLE: Rule(
        Fate.RETRY,
        "start the service of the section [environments], or correct its url",
        seconds=OUTAGE_S,
    ),
    FaultKind.TRAINER_LOST: Rule(
        Fate.RETRY, f"look at the trainer's log, {_AGAIN}", attempts=5, seconds=1800.0
    ),
    # Another process may have held the memory; what needs too much by itself fails each time.
    FaultKind.OUT_OF_MEMORY: Rule(
        Fate.RETRY,
        f"give the process more memory, or make its work smaller, {_AGAIN}",
        attempts=5,
        seconds=120.0,
    ),
    FaultKind.BATCH_FILE_DAMAGED: Rule(
        Fate.RETRY, f"check the disk of the trainer's home, {_AGAIN}", attempts=5, seconds=60.0
    ),
    FaultKind.TRAINER_FENCED: Rule(
        Fate.RETRY, f"stop all but one trainer worker of the campaign, {_AGAIN}", seconds=1800.0
    ),
    FaultKind.UNEXPECTED: Rule(
        Fate.RETRY,
        "this is a bug: please report it with the worker's log",
        attempts=5,
        seconds=60.0,
    ),
    # Masked.
    FaultKind.TASK_INVALID: Rule(Fate.MASK, "correct the task and import it again"),
    FaultKind.POLICY_REFUSED: Rule(
        Fate.MASK, "compare the request's limits (policy.*) with those of the engine"
    ),
    FaultKind.REPLY_MALFORMED: Rule(
        Fate.MASK,
        "check that policy.engines are addresses of the API that policy.api names",
        attempts=3,
        seconds=5.0,
    ),
    FaultKind.PROGRAM_SILENT: Rule(
        Fate.MASK,
        "run the command by hand in the task's image, for a client `mainspring agents check NAME`: "
        "it ended before it got a reply",
    ),
    FaultKind.FUNCTION_FAILED: Rule(
        Fate.MASK,
        "correct the function of agent.options; what the policy may cause, let it catch and score",
    ),
    FaultKind.SESSION_ABANDONED: Rule(
        Fate.MASK,
        "look at the log of the agent that took the session; raise agent.options.silence_s if it "
        "works for long without a request",
    ),
    FaultKind.JUDGE_MISSING: Rule(
        Fate.MASK,
        "start the judge and play the rollout again (`mainspring rollout retry`), or set "
        "required = false in its section [judges]",
    ),
    FaultKind.SANDBOX_DIVERGED: Rule(
        Fate.MASK, "commands of this task give other results each time they run"
    ),
    FaultKind.FENCED: Rule(Fate.MASK, "another life of the rollout counts; nothing is to be done"),
    # End the campaign.
    FaultKind.REWARD_BROKEN: Rule(Fate.END, f"correct the reward's function, {_AGAIN}"),
    FaultKind.LOGPROB_GAP: Rule(
        Fate.END,
        "engine and trainer do not hold the same weights, or compute them differently: compare "
        "their dtypes and versions",
    ),
    FaultKind.NON_FINITE_STEP: Rule(
        Fate.END, f"lower trainer.optimizer.lr or look at the batch's rewards, {_AGAIN}"
    ),
    FaultKind.BROKEN_TRAJECTORY: Rule(
        Fate.END, "this is a bug: please report it with the rollout's id"
    ),
    FaultKind.MODEL_UNUSABLE: Rule(
        Fate.END, f"put a complete model directory at policy.model, {_AGAIN}"
    ),
    FaultKind.CHECKPOINT_UNUSABLE: Rule(
        Fate.END, f"restore the checkpoint's directory from a backup, {_AGAIN}"
    ),
    FaultKind.DEVICE_MISSING: Rule(
        Fate.END, "run the trainer on a machine with the device, or ask for another one"
    ),
    FaultKind.STAMP_DIFFERS: Rule(
        Fate.END, f"start the trainer on the same kind of machine as before, {_AGAIN}"
    ),
    FaultKind.CONFIG_UNUSABLE: Rule(Fate.END, f"correct the field, {_AGAIN}"),
}


def rule_of(kind: FaultKind) -> Rule:
    return RULES[kind]


def waits_s(attempt: int) -> float:
    """The waits before this attempt, together."""
    return sum(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**n) for n in range(attempt - 1))
