"""Payloads of cross tests: at the end of an evaluation, tests of rollouts run against others."""

from pydantic import BaseModel

from mainspring.ids import CampaignId, RolloutId


class CrossTestPlan(BaseModel):
    """Carried by a run that chooses by cross tests."""

    attempt_s: float
    """Seconds that all tests of one candidate may take, without the sandboxes' own time."""
    after: RolloutId | None = None
    """Candidates up to this one are done. Carried over continue-as-new."""


class CandidatesInput(BaseModel):
    campaign: CampaignId
    after: RolloutId | None = None


class CandidatesResult(BaseModel):
    rollouts: list[RolloutId]
    """The next ones; empty: there are no more."""


class CrossTestInput(BaseModel):
    rollout: RolloutId


class CrossTestCounts(BaseModel):
    num_tests: int
    """Results that are stored, those of its own tests without a patch among them."""
    num_not_compared: int
