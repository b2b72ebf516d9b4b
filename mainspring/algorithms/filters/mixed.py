"""Only groups whose rewards differ: the others have no advantage (DAPO, arXiv 2503.14476)."""

from collections.abc import Sequence

from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig


def mixed(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> bool:
    return not is_flat([reward for reward in rewards_G if reward is not None])
