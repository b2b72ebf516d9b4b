"""Which curriculum a campaign names in [curriculum]: one of CURRICULA, "shuffled", or one of your
own as "package.module:function".

Invariants: what cannot be found or called is refused before the campaign is stored; what fails
later is the typed failure AlgorithmBroken, never another task.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from mainspring.config.campaign import CampaignConfig
from mainspring.config.curriculum import SHUFFLED
from mainspring.config.named import find
from mainspring.curricula.band import band
from mainspring.curricula.prioritized import prioritized
from mainspring.curricula.protocol import Curriculum, TaskHistory
from mainspring.errors import ConfigError
from mainspring.training.training_faults import algorithm_broken, raise_broken

CURRICULA: dict[str, Curriculum] = {"band": band, "prioritized": prioritized}


def next_task(tasks_N: Sequence[TaskHistory], draw: int, campaign: CampaignConfig) -> int:
    """Position of the task of training group number `draw`. Raises AlgorithmBroken."""
    kind = campaign.curriculum.kind
    what = f"curriculum.kind {kind!r}"
    choose: Any = find("curriculum", kind, CURRICULA)
    try:
        found = choose(tuple(tasks_N), draw, campaign)
    except Exception as error:
        raise_broken(what, error)
    if type(found) is not int or not 0 <= found < len(tasks_N):
        raise algorithm_broken(
            what, f"returned {found!r:.80}, expected a position from 0 to {len(tasks_N) - 1}"
        )
    return found


def check_curriculum(campaign: CampaignConfig) -> None:
    """Raises ConfigError."""
    kind = campaign.curriculum.kind
    if kind == SHUFFLED or kind in CURRICULA:
        return
    found = find("curriculum", kind, {SHUFFLED: None, **CURRICULA})
    takes = "(tasks_N, draw, campaign)"
    remedy = f"write it as `def name{takes}` (docs/extending.md), or choose from "
    remedy += ", ".join((SHUFFLED, *CURRICULA))
    if not callable(found) or inspect.isclass(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"curriculum {kind!r} is a {type(found).__name__}, expected a plain function",
            remedy=remedy,
        )
    try:
        inspect.signature(found).bind(None, None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"curriculum {kind!r} cannot be called as {takes}: {error}", remedy=remedy
        ) from None
