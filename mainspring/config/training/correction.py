"""Section [trainer.correction] of a campaign file: engine and trainer disagree about a token.

Owns the bounds of each kind. What a kind computes is in `trainer.corrections`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import Field, model_validator

from mainspring.config.section import LARGE, Counts, Section, Within

NO_CORRECTION = "none"
DEFAULT_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        # Truncated above only: a small weight has a small variance.
        "tis": (0.0, 2.0),
        "icepop": (0.5, 5.0),
        # Of a whole sample's tokens on average: an honest bfloat16 engine stays within 1 %.
        "sequence_mask": (0.9, 1.1),
    }
)
OWN_BOUNDS = (0.0, float("inf"))
"""Bounds of a kind of one's own."""


class CorrectionConfig(Section):
    """Importance weights between the engine's numbers and the trainer's own of the same tokens: the
    ratio of recomputed to served probability. They multiply advantages; entropy and KL terms keep
    their weight. Needs `proximal = "recomputed"`."""

    kind: str = NO_CORRECTION
    """How a token's ratio becomes its weight. "none": every weight is 1. "tis": the ratio, clamped
    to the bounds (truncated importance sampling). "icepop": the ratio, and 0 outside of the bounds.
    "sequence_mask": 1, and 0 for all tokens of a sample whose geometric mean of ratios is outside
    of the bounds. Or a function of your own as "package.module:function"."""
    low: Annotated[float | None, Within(le=LARGE), Counts.STEPS] = Field(default=None, ge=0)
    """Lower bound of a ratio. Unset: 0 for "tis", 0.5 for "icepop", 0.9 for "sequence_mask"."""
    high: Annotated[float | None, Within(le=LARGE), Counts.STEPS] = Field(default=None, gt=0)
    """Upper bound of a ratio. Unset: 2 for "tis", 5 for "icepop", 1.1 for "sequence_mask"."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Those that are set; each other one as the kind has it."""
        low, high = DEFAULT_BOUNDS.get(self.kind, OWN_BOUNDS)
        return (low if self.low is None else self.low, high if self.high is None else self.high)

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        low, high = self.bounds
        if not low < high:
            raise ValueError(f"low = {low} is not below high = {high}: raise high, or lower low")
        return self
