"""Payloads of rewards that functions of one's own compute before a rollout's end is written."""

from typing import Any

from pydantic import BaseModel

from mainspring.ids import RolloutId
from mainspring.status import StopReason, Verdict


class ScoreInput(BaseModel):
    rollout: RolloutId
    epoch: int
    stop_reason: StopReason
    verdict: Verdict | None
    num_turns: int


class ScoreResult(BaseModel):
    reward: float | None
    parts: dict[str, float | None] = {}
    turns: dict[str, Any] | None = None
    """As `TurnRewards.stored` has it; None: no part of the reward is given to turns."""
