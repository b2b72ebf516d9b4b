"""Dr. GRPO's advantages: rewards minus the group's mean, not divided by anything.

Source: arXiv 2503.20783. Masked rollouts do not enter the mean.
"""

from collections.abc import Sequence

from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig


def dr_grpo(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A group whose scored rewards are all equal, or with a single one, gives exact zeros."""
    scored = [reward for reward in rewards_G if reward is not None]
    if is_flat(scored):
        return [None if reward is None else 0.0 for reward in rewards_G]
    mean = sum(scored) / len(scored)
    return [None if reward is None else reward - mean for reward in rewards_G]
