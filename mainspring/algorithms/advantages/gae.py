"""PPO's advantages: a critic makes them from each branch's reward, token by token.

Sources: arXiv 1506.02438 and 1707.06347. Only the trainer's ranks hold the critic
(`trainer.step.critic`), so this estimator passes the rewards on; `mainspring.algorithms.gae`
computes.
"""

from collections.abc import Sequence

from mainspring.config.trainer import TrainerConfig


def gae(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A rollout is compared with no other, so a group of equal rewards counts in full."""
    return list(rewards_G)
