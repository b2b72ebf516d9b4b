"""Payloads of a rollout that a program plays."""

from pydantic import BaseModel

from mainspring.ids import RolloutId, SandboxId
from mainspring.programs.record import RequestState

ASK_SIGNAL = "ask"
"""Signal to the rollout's workflow, with number and epoch: a request of its program is stored."""
ASK_AGAIN_SIGNAL = "ask_again"
"""The same, of a request that its life has asked before, whether it was answered or not."""


class ProgramLimits(BaseModel):
    """Limits of a program's requests; its calls and its time are bounded as an agent's are."""

    requests_per_minute: int
    parallel_requests: int


class RunProgramInput(BaseModel):
    rollout: RolloutId
    epoch: int
    sandbox: SandboxId
    life: int
    """Programs that were started before it in this epoch."""
    timeout_s: float
    """The last bound; the workflow ends the program earlier."""
    is_last: bool = False
    """Whether no other life follows when the machine kills this one, or its answer is cut."""


class RunProgramResult(BaseModel):
    returncode: int
    was_killed: bool = False
    """By a signal that no program sends itself: the machine's doing."""
    was_stopped: bool = False
    """By the workflow or the last bound."""
    was_cut: bool = False
    """It failed by itself, and had not had the answer to its last request whole."""
    was_full: bool = False
    """It ended because its context was full: it told so, or failed at a prompt that was refused as
    too long."""


class AnswerInput(BaseModel):
    rollout: RolloutId
    epoch: int
    number: int
    """Number of the request."""
    min_policy_version: int


class AnswerResult(BaseModel):
    state: RequestState
    summary: str = ""
    """Commands that the policy asks for, for the UI."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    spent_s: float = 0.0
    """Time that the engine took, without waits, outages and attempts before it."""
    cost: float = 0.0
    """Dollars of this reply, where a limit on them counts."""
