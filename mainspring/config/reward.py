"""Section [reward]: what a rollout's end is worth."""

from pydantic import Field

from mainspring.config.section import Section


class RewardPart(Section):
    name: str
    """A registered part, or a function of your own as "package.module:function"."""
    weight: float = 1.0
    """Parts are added up with their weights."""
    options: dict[str, float] = Field(default_factory=dict)
    """Numbers that the part takes; an unknown one is refused."""


class RewardConfig(Section):
    parts: tuple[RewardPart, ...] = Field(default=(RewardPart(name="outcome"),), min_length=1)
    """What a rollout's reward is made of; each part's value is stored with it."""
