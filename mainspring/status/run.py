"""Runs, their groups, steps and tasks: every kind and status, one sentence each."""

from enum import StrEnum


class Verification(StrEnum):
    """Result of grading a task's gold patch and an empty one."""

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


class Incomplete(StrEnum):
    """Why a campaign's rows are not all there; nothing may use it then."""

    DELETING = "deleting"
    """`campaign delete` has begun."""
    RESTORING = "restoring"
    """`campaign restore` has begun."""


class GroupKind(StrEnum):
    TRAIN = "train"
    """Feeds the trainer."""
    EVAL = "eval"
    """Measures a policy version on held-out tasks; never trained on."""


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


class Untrained(StrEnum):
    """Why a step trained no token of a rollout of its batch."""

    MASKED = "masked"
    """It has no reward: a fault ended it, or its result could not be told."""
    NO_TOKENS = "no_tokens"
    """The policy sampled no token in it, or none of a call that is trained."""
    OVERLONG = "overlong"
    """A limit cut it off, and the campaign has `trainer.overlong = "mask"`."""
    STALE = "stale"
    """All its tokens are older than `trainer.max_token_staleness` allows."""
    CRITIC_WARMUP = "critic_warmup"
    """The step trained the critic alone."""
    ZERO_ADVANTAGE = "zero_advantage"
    """It was as good as the rollouts that it is compared with: nothing is to be learned."""


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


class Unverified(StrEnum):
    """Treatment, in a run, of tasks that are not verified."""

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
    """SGLang's native API, token by token; also that of `mainspring serve`."""
    VLLM = "vllm"
    """vLLM's routes for tokens, its weights loaded from files."""
    OPENAI = "openai"
    """Chat completions in text; for evaluations."""

    @property
    def gives_tokens(self) -> bool:
        """Whether replies come as tokens with log-probs, which can be trained on."""
        return self is not PolicyApi.OPENAI
