"""Tasks in proportion to how often they fail: 1 - solve rate (prioritized sampling of Kimi k1.5,
arXiv 2501.12599), at least `curriculum.outside`. Tasks never played have weight 1.

Tasks that are never solved have the largest weight: with many of them, "band" costs less.
"""

from collections.abc import Sequence

from mainspring.config.campaign import CampaignConfig
from mainspring.curricula.protocol import TaskHistory
from mainspring.curricula.weighted import drawn


def prioritized(tasks_N: Sequence[TaskHistory], draw: int, campaign: CampaignConfig) -> int:
    least = campaign.curriculum.outside

    def weight(task: TaskHistory) -> float:
        return max(least, 1.0 - (task.solve_rate or 0.0))

    return drawn(tasks_N, draw, campaign, weight)
