"""Section [reward]: what a rollout's end is worth."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mainspring.config.agents.judges import JudgeScope
from mainspring.config.section import LARGE, YEAR_S, Section, Within

SCORE = "score"
"""The part that is the number of a rollout's judge, as it is."""
JUDGE = "judge"
"""The part that is what a judge of [judges] thinks of a rollout."""


STEPS = "steps"
"""The part that is the sum of the rewards that an environment gave with single steps."""


class RewardPart(Section):
    name: str
    """Name of a part (docs/rewards.md), or a function of your own as "package.module:function"."""
    weight: Annotated[float, Within(ge=-LARGE, le=LARGE)] = 1.0
    """Factor of the part in the sum of all parts."""
    options: Annotated[dict[str, float], Within(ge=-1e12, le=1e12)] = Field(default_factory=dict)
    """Options of the part, all numbers; an unknown option is refused."""
    judge: str | None = None
    """Name of the judge in [judges], with `name = "judge"`."""
    of: JudgeScope | None = None
    """Scope of its judgements: each turn, or the whole rollout."""

    @model_validator(mode="after")
    def _judges_are_named(self) -> Self:
        if self.name == JUDGE:
            if self.judge is None:
                raise ValueError('name = "judge" needs judge, the name of a section [judges.NAME]')
            if self.of is None:
                raise ValueError('name = "judge" needs of = "turns" or of = "rollout"')
            if self.options:
                raise ValueError('name = "judge" takes no options: they are in [judges.NAME]')
        elif self.judge is not None or self.of is not None:
            raise ValueError('judge and of belong to name = "judge"')
        return self

    @property
    def label(self) -> str:
        """The part's name among the values of a rollout."""
        return self.name if self.name != JUDGE else f"{JUDGE}.{self.judge}.{self.of}"


class RewardConfig(Section):
    parts: tuple[RewardPart, ...] = Field(default=(RewardPart(name="outcome"),), min_length=1)
    """Parts of a rollout's reward; each part's value is stored with the rollout. Unset where a
    function plays (`agent.kind = "function"`), or a service scores ([environments.NAME]):
    "score"."""
    timeout_s: Annotated[float, Within(le=YEAR_S)] = Field(default=10.0, gt=0)
    """Seconds that functions of your own may take for one rollout, without the time that judges
    which they ask take."""

    @property
    def has_own_functions(self) -> bool:
        """Some part runs code that this project does not know."""
        return any(":" in part.name for part in self.parts)

    @property
    def without_judges(self) -> "RewardConfig":
        """For rollouts that no judge is asked about: patches that are graded again."""
        parts = tuple(part for part in self.parts if part.name != JUDGE)
        return RewardConfig(parts=parts) if parts else RewardConfig()
