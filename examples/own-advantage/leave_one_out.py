"""An advantage of your own: each rollout is compared with the mean of the others (RLOO).

Source: arXiv 2402.14740.
"""

from collections.abc import Sequence

from mainspring.config.trainer import TrainerConfig


def leave_one_out(rewards_G: Sequence[float | None], trainer: TrainerConfig) -> list[float | None]:
    scored = [reward for reward in rewards_G if reward is not None]
    num_others = len(scored) - 1
    if num_others < 1 or max(scored) == min(scored):
        return [None if reward is None else 0.0 for reward in rewards_G]
    total = sum(scored)
    return [
        None if reward is None else reward - (total - reward) / num_others for reward in rewards_G
    ]
