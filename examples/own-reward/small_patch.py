"""A reward of your own: a patch costs the more, the longer it is."""

from mainspring.rewards.scoring import Outcome


def small_patch(outcome: Outcome, *, max_bytes: float) -> float:
    """0 for no patch, -1 from `max_bytes` on, linear between."""
    return -min(len(outcome.patch) / max_bytes, 1.0)
