"""Section [curriculum]: which task the next training group gets, and which tasks are left out."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mainspring.config.section import MANY, Counts, Section, Within

SHUFFLED = "shuffled"


class CurriculumConfig(Section):
    kind: Annotated[str, Counts.ROLLOUTS] = SHUFFLED
    """"shuffled": every task once in each pass, in random order. "band": tasks whose solve rate so
    far lies between `low` and `high`, and tasks not played yet. "prioritized": tasks in proportion
    to how often they fail. Or a function of your own as "package.module:function"."""
    low: Annotated[float, Within(), Counts.ROLLOUTS] = Field(default=0.1, ge=0, le=1)
    """Lowest solve rate of the band."""
    high: Annotated[float, Within(), Counts.ROLLOUTS] = Field(default=0.9, ge=0, le=1)
    """Highest solve rate of the band."""
    outside: Annotated[float, Within(), Counts.ROLLOUTS] = Field(default=0.05, ge=0, le=1)
    """Weight of a task outside the band, and the smallest weight of "prioritized"; a task in the
    band or not played yet has weight 1."""
    recent_groups: Annotated[int, Within(le=MANY), Counts.ROLLOUTS] = Field(default=2, ge=1)
    """Number of newest groups of a task that its solve rate is taken over."""
    pass_rates_of: str = ""
    """Name of an evaluation with this task source. Its tasks whose pass rate there lies outside
    `min_pass_rate` and `max_pass_rate` are left out, and so are those it did not play. Empty: all
    tasks are used."""
    min_pass_rate: Annotated[float, Within()] = Field(default=0.0, ge=0, le=1)
    """Lowest pass rate of a task that is used."""
    max_pass_rate: Annotated[float, Within()] = Field(default=1.0, ge=0, le=1)
    """Highest pass rate of a task that is used."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        for low, high in (("low", "high"), ("min_pass_rate", "max_pass_rate")):
            least, most = getattr(self, low), getattr(self, high)
            if least > most:
                raise ValueError(f"{low} = {least} is more than {high} = {most}")
        return self

    @model_validator(mode="after")
    def _pass_rates_have_a_source(self) -> Self:
        if not self.pass_rates_of and (self.min_pass_rate > 0 or self.max_pass_rate < 1):
            raise ValueError(
                "min_pass_rate and max_pass_rate need pass_rates_of, the name of an evaluation"
            )
        return self
