"""Payloads of one rollout: from its claim to its reward."""

from enum import StrEnum

from pydantic import BaseModel

from mainspring.ids import CampaignId, GroupId, NodeId, RolloutId, SandboxId, TaskId
from mainspring.protocol.judging import JudgePlan
from mainspring.protocol.program import ProgramLimits
from mainspring.protocol.scoring import ScoreResult
from mainspring.protocol.session import RemoteLimits
from mainspring.status import Player, StopReason, Verdict
from mainspring.trajectories.tally import Tally

STRAGGLER_SIGNAL = "straggler"
"""Signal from a group to a rollout that still plays: the seconds of replies and commands that are
left to it."""


class RolloutInput(BaseModel):
    rollout: RolloutId
    campaign: CampaignId
    group: GroupId
    min_policy_version: int = 0
    """Engines serving an older version are brought up to date before they are asked."""


class RolloutResult(BaseModel):
    rollout: RolloutId
    stop_reason: StopReason
    reward: float | None
    """None: masked."""
    num_turns: int
    verdict: Verdict | None = None
    fault: str | None = None
    """Cause for which it was masked, with the remedy."""
    broken: str | None = None
    """Why no rollout of this campaign can be scored."""


class RolloutRef(BaseModel):
    """A rollout in one life of its sandbox history."""

    rollout: RolloutId
    epoch: int


class BeginInput(BaseModel):
    rollout: RolloutId
    run_id: str


class BeginResult(BaseModel):
    epoch: int
    task: TaskId
    step_limit: int
    max_format_errors: int
    command_timeout_s: float
    request_timeout_s: float
    rollout_timeout_s: float
    test_timeout_s: float
    prefer: NodeId | None = None
    """A node that has the task's image and room, for the first sandbox."""
    player: Player = Player.POLICY
    turns_per_activity: int = 1
    program: ProgramLimits | None = None
    """A program plays; None: an agent whose turns the workflow takes."""
    remote: RemoteLimits | None = None
    """It runs elsewhere; None: in the rollout's sandbox."""
    judges: list[JudgePlan] = []
    """Judges to ask, one for each part of the reward that is one's."""
    score_s: float | None = None
    """Seconds that functions of the campaign's own may take for the reward, with their judges;
    None: it has none."""
    cost_limit: float | None = None
    """Dollars that its calls may cost; None: no limit."""


class NewEpochInput(BaseModel):
    rollout: RolloutId
    run_id: str
    from_epoch: int


class ReplyKind(StrEnum):
    COMMAND = "command"
    """It asks for one command or several."""
    FORMAT_ERROR = "format_error"
    """Not what the agent takes; the next prompt reports it."""
    SUMMARY = "summary"
    """A summary of the turns so far, which the context strategy asked for: it runs nothing."""
    CONTEXT_FULL = "context_full"
    """Nothing was generated: the prompt leaves no room for a reply."""


class GenerateInput(BaseModel):
    rollout: RolloutId
    epoch: int
    turn: int
    min_policy_version: int


class GenerateResult(BaseModel):
    kind: ReplyKind
    summary: str = ""
    """First characters of the first command, for the UI."""
    num_commands: int = 1
    """To run one after the other; without meaning for other kinds."""
    num_prompt_tokens: int | None = 0
    num_completion_tokens: int | None = 0
    """None: an endpoint that does not count them."""
    spent_s: float = 0.0
    """Time that the engine took for this reply, without waits, outages and attempts before it."""
    cost: float = 0.0
    """Dollars of this reply, where a limit on them counts."""


class OpenInput(BaseModel):
    rollout: RolloutId
    epoch: int
    life: int
    """How many sandboxes this rollout had before; part of the sandbox's id."""


class SandboxRef(BaseModel):
    sandbox: SandboxId
    node: NodeId
    backend: str


class ExecuteInput(BaseModel):
    rollout: RolloutId
    epoch: int
    turn: int
    """Number of the call that asked for the command."""
    index: int = 0
    """The command's place among those of its call."""
    sandbox: SandboxId
    timeout_s: float


class ExecuteResult(BaseModel):
    returncode: int
    timed_out: bool
    submitted: bool
    """The submit command ran and succeeded; the patch is stored and the sandbox closed."""
    num_output_bytes: int
    spent_s: float = 0.0
    """Time that the command itself took."""


class PlayInput(BaseModel):
    rollout: RolloutId
    epoch: int
    sandbox: SandboxId
    tally: Tally
    """Tally of the turns before."""
    num_turns: int
    """To play at most."""
    min_policy_version: int
    request_timeout_s: float
    command_timeout_s: float
    num_closed: int = 0
    """As PlayResult told: of the first reply that is asked for."""


class PlayResult(BaseModel):
    tally: Tally
    """Tally of all turns up to now. Without a stop it counts whole turns only; what is stored of
    the next one is not played again."""
    returncode: int | None = None
    """Return code of the last command that ran now."""
    num_tokens: int | None = None
    """Tokens of the conversation, where they are counted."""
    execute_s: float = 0.0
    """Time of the commands as this attempt saw it."""
    is_closed: bool = False
    """The turns have ended, the patch is stored and the sandbox closed."""
    collect_s: float = 0.0
    """Time that this took without a submission, whose command includes it."""
    retry_s: float | None = None
    """When to try the next turn again, which failed after others of the same activity; None: it did
    not."""
    num_closed: int = 0
    """Connections that closed under that turn's request."""


class SandboxInput(BaseModel):
    rollout: RolloutId
    epoch: int
    sandbox: SandboxId


class RestoreResult(RolloutRef):
    num_turns: int = 0
    """Turns that have a command that ran, as far as the store knows."""


class PatchResult(BaseModel):
    num_bytes: int


class GradeResult(BaseModel):
    verdict: Verdict
    fault: str | None = None
    tests_passed: float | None = None
    """Share of the hidden tests that passed, where the judge counts them."""


class FinishInput(BaseModel):
    rollout: RolloutId
    epoch: int
    stop_reason: StopReason
    verdict: Verdict | None = None
    fault: str | None = None
    num_turns: int
    phase_s: dict[str, float] = {}
    scored: ScoreResult | None = None
    """The reward that functions of the campaign's own gave; None: it has none."""


class FinishResult(BaseModel):
    reward: float | None
    num_turns: int | None = None
    """As stored, also those of an activity that did not live to report them."""
