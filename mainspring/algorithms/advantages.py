"""Group-relative advantages: pure arithmetic on the rewards of one group.

Source: GRPO, arXiv 2402.03300; without the standard deviation, Dr. GRPO, arXiv 2503.20783.
Masked rollouts (infrastructure faults, cancellations) enter neither the mean nor the deviation.
"""

from collections.abc import Sequence

STD_EPS = 1e-4
FLAT = 1e-12
"""Rewards that differ by no more are equal: sums and means of floats are not exact."""


def is_flat(scored: Sequence[float]) -> bool:
    """Whether nothing tells the rollouts of a group apart: their rewards are equal."""
    return not scored or max(scored) - min(scored) <= FLAT


def group_advantages(
    rewards_G: Sequence[float | None], *, normalize_std: bool
) -> list[float | None]:
    """Advantage of each rollout of a group; None where the reward is None (masked).

    A group whose scored rewards are all equal, or with a single one, gives exact zeros.
    """
    scored = [reward for reward in rewards_G if reward is not None]
    if not scored:
        return [None] * len(rewards_G)
    if is_flat(scored):
        return [None if reward is None else 0.0 for reward in rewards_G]
    mean = sum(scored) / len(scored)
    scale = 1.0
    if normalize_std:
        variance = sum((reward - mean) ** 2 for reward in scored) / len(scored)
        scale = variance**0.5 + STD_EPS
    return [None if reward is None else (reward - mean) / scale for reward in rewards_G]
