"""Tasks that are solved sometimes: those whose solve rate so far lies in a band.

A group whose rollouts all solve its task, or none, has no advantage; its tokens are paid and not
trained on (online difficulty filtering, Bae et al., arXiv 2504.03380). Tasks outside the band keep
the small weight `curriculum.outside`, because the policy changes. Tasks never played have weight 1.
"""

from collections.abc import Sequence

from mainspring.config.campaign import CampaignConfig
from mainspring.curricula.protocol import TaskHistory
from mainspring.curricula.weighted import drawn


def band(tasks_N: Sequence[TaskHistory], draw: int, campaign: CampaignConfig) -> int:
    config = campaign.curriculum

    def weight(task: TaskHistory) -> float:
        rate = task.solve_rate
        is_in = rate is None or config.low <= rate <= config.high
        return 1.0 if is_in else config.outside

    return drawn(tasks_N, draw, campaign, weight)
