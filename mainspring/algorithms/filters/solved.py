"""Only groups of which the advantage "raft" keeps a rollout: the others have nothing to imitate."""

from collections.abc import Sequence

from mainspring.config.trainer import TrainerConfig


def solved(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> bool:
    return any(reward is not None and reward >= trainer.keep_reward for reward in rewards_G)
