"""RAFT's advantages: 1 for rollouts that are good enough, 0 for the others, which are discarded.

With the loss "nll" a step is supervised training on the kept rollouts: rejection sampling. Source:
RAFT, arXiv 2304.06767 (Dong et al. 2023), in the form of arXiv 2504.11343 (Xiong et al. 2025),
which keeps every solved rollout instead of each group's best; with the loss "clip" it is their
RAFT++.
"""

from collections.abc import Sequence

from mainspring.config.trainer import TrainerConfig


def raft(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    """A group is compared with nothing: one whose rollouts are all kept counts in full."""
    return [
        None if reward is None else float(reward >= trainer.keep_reward) for reward in rewards_G
    ]
