"""Payloads of judgements: a question to a judge about a turn or a rollout, and what came of it."""

from pydantic import BaseModel

from mainspring.config.agents.judges import JudgeScope
from mainspring.ids import RolloutId


class JudgePlan(BaseModel):
    """One judge that a rollout's reward has a part of."""

    judge: str
    of: JudgeScope
    attempt_s: float
    """Seconds that its votes may take in one attempt."""
    required: bool = False
    """A missing judgement masks the rollout."""


class JudgeInput(BaseModel):
    rollout: RolloutId
    epoch: int
    judge: str
    of: JudgeScope
    call: int = 0
    """Number of the call whose turn is judged; 0 of a rollout."""


class JudgeResult(BaseModel):
    is_judged: bool = True
    """False: the turn ran nothing, so that there is nothing to judge."""
    score: float | None = None
    """None: missing, or not judged."""
    num_votes: int = 0
    num_valid: int = 0
    missing: str | None = None
    """Why votes are missing, in short."""
