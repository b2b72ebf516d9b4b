"""Section [prices.MODEL]: dollars that a model's tokens cost."""

from typing import Annotated

from pydantic import Field

from mainspring.config.section import LARGE, Section, Within

PER = 1_000_000
"""Tokens that a price is for."""


class PriceConfig(Section):
    """Prices in dollars for a million tokens, by the model's name as in policy.model; of a model
    directory its last part is enough. With them, evaluations and rollouts tell what they cost."""

    input: Annotated[float, Within(le=LARGE)] = Field(ge=0)
    """Price of prompt tokens."""
    output: Annotated[float, Within(le=LARGE)] = Field(ge=0)
    """Price of reply tokens."""
    cached_input: Annotated[float | None, Within(le=LARGE)] = Field(default=None, ge=0)
    """Price of prompt tokens that the call before on the same branch held already: an estimate of
    what an endpoint with a prompt cache bills. Unset: that of `input`."""

    def dollars(self, num_prompt: int, num_cached: int, num_completion: int) -> float:
        """`num_cached` of the prompt's tokens were held by the call before."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = num_prompt - num_cached
        return (fresh * self.input + num_cached * cached + num_completion * self.output) / PER
