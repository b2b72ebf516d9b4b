"""Every status, end, verdict and fault there is, one sentence each.

The same strings stand in Postgres, in Temporal's search attributes and on the command line.
"""

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


MASKED_ENDS = frozenset({StopReason.CANCELLED, StopReason.INFRA_FAULT, StopReason.TERMINATED})
"""Ends that tell nothing about the agent."""


CUT_ENDS = frozenset(
    {
        StopReason.STEP_LIMIT,
        StopReason.CONTEXT_FULL,
        StopReason.WALL_TIME,
        StopReason.REQUEST_RATE,
        StopReason.STRAGGLER,
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
    """What makes a trajectory look like cheating; for people to read, never scored."""

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


class Verification(StrEnum):
    """What grading a task's gold patch and an empty one has shown."""

    UNVERIFIED = "unverified"
    """Not both were graded."""
    VERIFIED = "verified"
    """Gold always resolves, the empty patch never does."""
    FLAKY = "flaky"
    """The same patch got different verdicts."""
    GOLD_FAILS = "gold_fails"
    """The gold patch does not resolve the task."""
    EMPTY_PASSES = "empty_passes"
    """The hidden tests pass without any fix."""


class Verdict(StrEnum):
    """What grading found."""

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


class FaultKind(StrEnum):
    """What failed: the `type` of the Temporal ApplicationError that carries a failure. What happens
    then is in `mainspring.fates`."""

    SANDBOX_LOST = "SandboxLost"
    """The sandbox is gone (node restarted, container died); rebuilt by replay."""
    NODE_FULL = "NodeFull"
    """The node took nothing new when it was asked to open; another one is asked."""
    NODE_FAILED = "NodeFailed"
    """A node's sandbox backend failed: Docker does not answer, a sandbox does not start."""
    CAMPAIGN_FULL = "CampaignFull"
    """The campaign has as many sandboxes open as its `sandbox.max_open` allows."""
    IMAGE_UNREACHABLE = "ImageUnreachable"
    """A container image cannot be had now: a registry does not answer, a disk is full."""
    DATABASE_UNREACHABLE = "DatabaseUnreachable"
    """Postgres does not answer, or cannot take writes now."""
    TEMPORAL_UNREACHABLE = "TemporalUnreachable"
    """Temporal does not answer an activity that asks it."""
    ENGINE_UNREACHABLE = "EngineUnreachable"
    """No policy engine or endpoint answers."""
    ENGINE_BUSY = "EngineBusy"
    """Every policy engine or endpoint answers that it has no room now (HTTP 429, 503)."""
    ENGINE_FAILING = "EngineFailing"
    """The policy engine or endpoint answers, and fails at this request each time (HTTP 500)."""
    ENDPOINT_REFUSING = "EndpointRefusing"
    """The policy endpoint refuses every request now: its key, credits, model or address (HTTP 401,
    402, 403, 404, a redirect)."""
    TRAINER_LOST = "TrainerLost"
    """A process of the trainer died or stopped answering; it is started again."""
    OUT_OF_MEMORY = "OutOfMemory"
    """A rank, worker or engine has no memory left, of the host or of a GPU; it is tried again."""
    BATCH_FILE_DAMAGED = "BatchFileDamaged"
    """The file of a step's batch is not what was written; the next attempt writes another."""
    TRAINER_FENCED = "TrainerFenced"
    """Another trainer process has taken over the campaign; this attempt must stop."""
    UNEXPECTED = "Unexpected"
    """An exception that is no MainspringError: a bug. Retried a few times."""

    TASK_INVALID = "TaskInvalid"
    """The task cannot be run as it is stored (image missing, repository empty)."""
    POLICY_REFUSED = "PolicyRefused"
    """The policy engine rejects the request for good (prompt too long, unknown field)."""
    REPLY_MALFORMED = "ReplyMalformed"
    """The policy engine or endpoint sent a reply of another shape than its API has."""
    PROGRAM_SILENT = "ProgramSilent"
    """The program that should play ended without a request that was answered."""
    FUNCTION_FAILED = "FunctionFailed"
    """The Python function that should play raised, or returned what cannot be used."""
    SESSION_ABANDONED = "SessionAbandoned"
    """Agents outside took the rollout's session and left it, or told that they failed."""
    SANDBOX_DIVERGED = "SandboxDiverged"
    """A replayed command gave another return code or output; a new epoch starts."""
    FENCED = "Fenced"
    """A newer epoch of the rollout exists; this attempt must stop."""

    REWARD_BROKEN = "RewardBroken"
    """A part of the reward raised or gave no number."""
    LOGPROB_GAP = "LogprobGap"
    """Log-probs of the engine and of the trainer differ by more than allowed."""
    NON_FINITE_STEP = "NonFiniteStep"
    """A loss or gradient is not a number."""
    BROKEN_TRAJECTORY = "BrokenTrajectory"
    """Stored turns do not line up token by token."""
    MODEL_UNUSABLE = "ModelUnusable"
    """A model directory lacks something or does not fit the campaign."""
    CHECKPOINT_UNUSABLE = "CheckpointUnusable"
    """A checkpoint is missing, damaged, or another one than the store names."""
    DEVICE_MISSING = "DeviceMissing"
    """The accelerator that the campaign asks for is not there."""
    STAMP_DIFFERS = "StampDiffers"
    """A reproducible campaign's trainer is on another kind of machine or library than before."""
    CONFIG_UNUSABLE = "ConfigUnusable"
    """A field of the campaign cannot be used as it is."""


class CampaignKind(StrEnum):
    TRAIN = "train"
    """Rollouts feed a trainer."""
    EVAL = "eval"
    """A policy or an endpoint is measured on a task set."""
    VERIFY = "verify"
    """Gold and empty patches are graded, to know the tasks."""
    REGRADE = "regrade"
    """Patches of an earlier campaign are graded again."""
    SFT = "sft"
    """A model is trained on stored or imported trajectories."""


class GroupKind(StrEnum):
    TRAIN = "train"
    """Feeds the trainer."""
    EVAL = "eval"
    """Measures a policy version on held-out tasks; never trained on."""


class Sampling(StrEnum):
    """How a group's rollouts draw tokens."""

    SAMPLED = "sampled"
    """At the campaign's temperature."""
    GREEDY = "greedy"
    """At temperature 0."""


class Exclusion(StrEnum):
    """Why a run does not use a task of its split."""

    VERIFICATION = "verification"
    """Its verification is missing or failed; the word is stored beside."""
    PASS_RATE_LOW = "pass_rate_low"
    """Solved too rarely in the evaluation that the campaign filters by."""
    PASS_RATE_HIGH = "pass_rate_high"
    """Solved too often there."""
    NO_PASS_RATE = "no_pass_rate"
    """No rollout of it was scored there."""


class GroupStatus(StrEnum):
    RUNNING = "running"
    """Rollouts are in flight."""
    READY = "ready"
    """All rollouts ended and enough of them were scored; waits for a step."""
    CONSUMED = "consumed"
    """Part of a finished step."""
    MASKED = "masked"
    """Too few rollouts could be scored, or an operator discarded it (`note`); replaced."""
    FLAT = "flat"
    """All scored rewards are equal: nothing to learn; replaced."""
    CANCELLED = "cancelled"
    """Cancelled with its rollouts."""


class StepStatus(StrEnum):
    PLANNED = "planned"
    """Its batch is fixed; the optimizer has not moved as far as anyone can see."""
    DONE = "done"
    """Checkpoint, consumed groups and the new policy version are visible."""


class CampaignStatus(StrEnum):
    CREATED = "created"
    """Stored; its workflow has not begun."""
    WARMING_UP = "warming_up"
    """The supervised warm start runs."""
    RUNNING = "running"
    """Rollouts and steps are under way."""
    PAUSED = "paused"
    """No new groups and no steps until resumed; rollouts in flight finish."""
    FINISHED = "finished"
    """All steps done and the last evaluation in."""
    CANCELLED = "cancelled"
    """Stopped by a person; what is done stays."""
    FAILED = "failed"
    """Ended by an error named in the campaign's row."""


class ExecutionState(StrEnum):
    INTENT = "intent"
    """About to run, running, or its runner died: a second attempt re-attaches by turn id."""
    DONE = "done"
    """Ran; its result is stored."""


class SandboxPurpose(StrEnum):
    AGENT = "agent"
    """Runs the agent's commands."""
    GRADE = "grade"
    """Judges one patch."""


class SandboxStatus(StrEnum):
    OPEN = "open"
    """Alive, as far as its node last said."""
    CLOSED = "closed"
    """Closed by its rollout."""
    LOST = "lost"
    """Its node or process died under it."""
    REAPED = "reaped"
    """Removed by a reaper: no live workflow owned it."""


class NodeStatus(StrEnum):
    """Of a container host; derived from what it last said, when, and what it was asked."""

    UP = "up"
    """Said so lately."""
    DRAINING = "draining"
    """Asked to take nothing new; something is still open on it, or it has not heard yet."""
    DRAINED = "drained"
    """Takes nothing new and holds nothing: it may be stopped."""
    STOPPED = "stopped"
    """Its process ended in order and told the store."""
    LOST = "lost"
    """Has not been heard of for as long as workflows wait for it."""


class Refusal(StrEnum):
    """Why a node takes no new sandbox now."""

    DRAINING = "draining"
    """An operator asked it to drain."""
    FULL = "full"
    """It holds as many as it may."""
    LOW_MEMORY = "low memory"
    """Less is free than `node_min_free_memory_mb`."""
    LOW_DISK = "low disk"
    """Less is free than `node_min_free_disk_mb`."""


class Unverified(StrEnum):
    """What a run does with tasks that are not verified."""

    SKIP = "skip"
    """Only tasks that `mainspring tasks verify` passed; the number of excluded ones is shown."""
    USE = "use"
    """All tasks, also those found flaky or wrong."""


class Publish(StrEnum):
    """How new weights get into engines."""

    DISK = "disk"
    """Engines load the files of the version."""
    COLLECTIVE = "collective"
    """The trainer's ranks send them to all engines at once, over a process group (NCCL, on CPU
    gloo); an engine that this did not reach loads the files."""
    ADAPTER = "adapter"
    """Engines keep the frozen model and load the adapters of the version."""


class PolicyApi(StrEnum):
    """How the policy is asked."""

    SGLANG = "sglang"
    """SGLang's native API, token by token; the only one that can be trained on."""
    OPENAI = "openai"
    """Chat completions in text; for evaluations."""
