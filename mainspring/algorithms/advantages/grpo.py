"""GRPO's advantages: rewards minus the group's mean, divided by its standard deviation.

Source: arXiv 2402.03300. Masked rollouts (infrastructure faults, cancellations) enter neither the
mean nor the deviation.
"""

from collections.abc import Sequence

from mainspring.algorithms.advantages.dr_grpo import dr_grpo
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig

STD_EPS = 1e-4


def grpo(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A group whose scored rewards are all equal, or with a single one, gives exact zeros. With
    `normalize_std = false` nothing is divided: then it is `dr_grpo`."""
    scored = [reward for reward in rewards_G if reward is not None]
    if is_flat(scored) or not trainer.normalize_std:
        return dr_grpo(rewards_G, trainer)
    mean = sum(scored) / len(scored)
    variance = sum((reward - mean) ** 2 for reward in scored) / len(scored)
    scale = variance**0.5 + STD_EPS
    return [None if reward is None else (reward - mean) / scale for reward in rewards_G]
