"""A task drawn by weight, apart from those in flight: what the weighted curricula share."""

import random
from collections.abc import Callable, Sequence

from mainspring.config.campaign import CampaignConfig
from mainspring.curricula.protocol import TaskHistory


def drawn(
    tasks_N: Sequence[TaskHistory],
    draw: int,
    campaign: CampaignConfig,
    weight: Callable[[TaskHistory], float],
) -> int:
    """A function of seed, `draw` and the weights. A task whose group is in flight has weight 0:
    its outcome is not known yet, and two groups of one task teach less than two of two. Where
    nothing has weight, all tasks are alike."""
    weights = [0.0 if task.num_running else weight(task) for task in tasks_N]
    rng = random.Random(f"{campaign.seed}/curriculum/{draw}")
    if not sum(weights) > 0:
        return rng.randrange(len(tasks_N))
    return rng.choices(range(len(tasks_N)), weights)[0]
