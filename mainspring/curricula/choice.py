"""Which curriculum a campaign names in [curriculum]: one of CURRICULA, "shuffled", or one of your
own as "package.module:function".

Invariants: what cannot be found or called is refused before the campaign is stored; what fails
later is the typed failure AlgorithmBroken, never another task.
"""

from collections.abc import Sequence
from typing import Any

from mainspring.config.campaign import CampaignConfig
from mainspring.config.curriculum import SHUFFLED
from mainspring.config.registry import Registry
from mainspring.curricula.band import band
from mainspring.curricula.prioritized import prioritized
from mainspring.curricula.protocol import Curriculum, TaskHistory
from mainspring.training.training_faults import algorithm_broken, raise_broken

CURRICULA: Registry[Curriculum] = Registry(
    "curriculum",
    (("band", band), ("prioritized", prioritized)),
    takes="tasks_N, draw, campaign",
    also=(SHUFFLED,),
)


def next_task(tasks_N: Sequence[TaskHistory], draw: int, campaign: CampaignConfig) -> int:
    """Position of the task of training group number `draw`. Raises AlgorithmBroken."""
    kind = campaign.curriculum.kind
    what = f"curriculum.kind {kind!r}"
    choose: Any = CURRICULA.find(kind)
    try:
        position = choose(tuple(tasks_N), draw, campaign)
    except Exception as error:
        raise_broken(what, error)
    if type(position) is not int or not 0 <= position < len(tasks_N):
        raise algorithm_broken(
            what, f"returned {position!r:.80}, expected a position from 0 to {len(tasks_N) - 1}"
        )
    return position
