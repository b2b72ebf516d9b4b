"""Payloads of runs: evaluations (also a campaign's own), verifications and regrades."""

from pydantic import BaseModel

from mainspring.ids import CampaignId, GroupId
from mainspring.protocol.cross_testing import CrossTestPlan

MAX_GROUP_SIZE = 500
"""Rollouts of one group; the list of those to be played must stay a small payload."""


class PolicyEvaluation(BaseModel):
    """An evaluation of a campaign's own: one policy version, one split, one way of sampling."""

    policy_version: int
    split: str
    greedy: bool


class RunState(BaseModel):
    """Carried over continue-as-new."""

    campaign: CampaignId
    concurrency: int
    """Rollouts in flight at once."""
    summary: str
    """Description of its rollouts, for the UI."""
    rollouts_per_run: int = 1000
    """Then the workflow continues as new, a group later at the latest: with ten events of each
    rollout in its history that is a third of what the server allows."""
    next_group: int = 0
    paused: bool = False
    evaluation: PolicyEvaluation | None = None
    """Set: part of a campaign, whose status is not this workflow's to write."""
    cross_tests: CrossTestPlan | None = None
    """Set: when all rollouts have ended, tests that they wrote are run against each other's
    patches."""


class RunGroupInput(BaseModel):
    campaign: CampaignId
    index: int
    evaluation: PolicyEvaluation | None = None


class RunGroupResult(BaseModel):
    group: GroupId
    size: int
    """0: the run has no group of this index."""
    unfinished: list[int]
    """Rollouts that are to be played: not ended yet, or ended without a verdict."""
    is_last: bool = False
    """The run is known to have no group after this one."""


class RunProgress(BaseModel):
    """Answer of the `progress` query, and the result."""

    num_groups: int
    """Begun."""
    num_waiting: int
    """Rollouts of these that wait for their turn."""
    num_in_flight: int
    paused: bool
    waiting_for: str | None = None
    """Event that has to come next, in words."""
    waiting_since: float | None = None
    """When a rollout last began or ended, in unix seconds."""
    waiting_queue: str | None = None
    """The task queue whose workers it is up to; None: a person."""
