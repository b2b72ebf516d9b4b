"""Section [reward]: what a rollout's end is worth."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import LARGE, Section, Within

SCORE = "score"
"""The part that is the number of a rollout's judge, as it is."""


class RewardPart(Section):
    name: str
    """Name of a part (docs/rewards.md), or a function of your own as "package.module:function"."""
    weight: Annotated[float, Within(ge=-LARGE, le=LARGE)] = 1.0
    """Factor of the part in the sum of all parts."""
    options: Annotated[dict[str, float], Within(ge=-1e12, le=1e12)] = Field(default_factory=dict)
    """Options of the part, all numbers; an unknown option is refused."""


class RewardConfig(Section):
    parts: tuple[RewardPart, ...] = Field(default=(RewardPart(name="outcome"),), min_length=1)
    """Parts of a rollout's reward; each part's value is stored with the rollout. Unset where a
    function plays (`agent.kind = "function"`): "score"."""
