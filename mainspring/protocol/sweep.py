"""Input and result of one sweep."""

from pydantic import BaseModel

MIN_AGE_S = 60.0
"""Rollouts and groups younger than this are left alone: their workflow may be just beginning."""


class SweepInput(BaseModel):
    min_age_s: float = MIN_AGE_S


class SweepResult(BaseModel):
    """Findings of one sweep; the line `swept` in the rollout workers' logs."""

    num_rollouts_alive: int
    """Under way for longer than the minimum age, by a workflow that runs."""
    num_rollouts_ended: int
    """Ended in the store because their workflow does not run any more."""
    num_groups_closed: int
    """Closed in place of their workflow, their campaign told."""
    num_leases_lost: int
    """On nodes that have not been heard of for too long."""
    num_campaigns_ended: int = 0
    """Whose workflow had ended without a word to the store."""
