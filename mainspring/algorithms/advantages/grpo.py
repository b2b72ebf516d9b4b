"""GRPO's advantages: rewards minus the group's mean, divided by its standard deviation.

Source: arXiv 2402.03300. Masked rollouts (infrastructure faults, cancellations) enter neither the
mean nor the deviation. With `std = "unbiased"` equals verl's "grpo" and slime's.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mainspring.algorithms.advantages.dr_grpo import dr_grpo
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.algorithm import Std
from mainspring.config.trainer import TrainerConfig

STD_EPS: Mapping[Std, float] = MappingProxyType({Std.POPULATION: 1e-4, Std.UNBIASED: 1e-6})


def grpo(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A group whose scored rewards are all equal, or with a single one, gives exact zeros. With
    `std = "none"` nothing is divided: then it is `dr_grpo`."""
    scored = [reward for reward in rewards_G if reward is not None]
    if is_flat(scored) or trainer.std is Std.NONE:
        return dr_grpo(rewards_G, trainer)
    mean = sum(scored) / len(scored)
    num_free = len(scored) - (trainer.std is Std.UNBIASED)
    variance = sum((reward - mean) ** 2 for reward in scored) / num_free
    scale = variance**0.5 + STD_EPS[trainer.std]
    return [None if reward is None else (reward - mean) / scale for reward in rewards_G]
