"""RLOO's advantages: each reward minus the mean of the others in its group.

Source: arXiv 2402.14740. Masked rollouts are not among the others. Equals verl's "rloo".
"""

from collections.abc import Sequence

from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig


def rloo(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A group whose scored rewards are all equal, or with a single one, gives exact zeros."""
    scored = [reward for reward in rewards_G if reward is not None]
    if is_flat(scored):
        return [None if reward is None else 0.0 for reward in rewards_G]
    total, num_others = sum(scored), len(scored) - 1
    return [
        None if reward is None else reward - (total - reward) / num_others for reward in rewards_G
    ]
