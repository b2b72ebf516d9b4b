"""A correction: how much each token counts, given how far engine and trainer disagree about it.

Invariants: pure; of one sample's action tokens, none of which any other sample moves; a factor is
not negative, and has no gradient. The pass multiplies advantages by it, so that every loss is
corrected alike and bonus and penalty keep their weight. Imported by the corrections and by
`trainer.step.loss_pass`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mainspring.config.training.correction import CorrectionConfig


@dataclass(frozen=True, slots=True)
class Corrected:
    factors: Tensor
    """[T] of the advantages."""
    is_cut: Tensor
    """[T] whether a bound changed the token's factor; the step reports the share of them."""


class Correction(Protocol):
    def __call__(self, log_ratio: Tensor, correction: CorrectionConfig, /) -> Corrected:
        """`log_ratio`: [T] recomputed - served log-probs of one sample's action tokens; recomputed
        under the weights that the step begins with."""
        ...
