"""Token sequences as a step and a warm start take them. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class MaskedSequence:
    """As a step engine takes it."""

    token_ids: NDArray[np.int32]
    """[T]"""
    mask: NDArray[np.bool_]
    """[T] whose log-probs are wanted; never the first one's, nothing predicts it."""
    is_served: bool = False
    """Whether they are compared with those that an engine served."""


@dataclass(frozen=True, slots=True)
class WeightedSequence:
    """For supervised training: token ids and how much each token counts in the loss."""

    token_ids: NDArray[np.int32]
    """[T]"""
    weights: NDArray[np.float32]
    """[T] weight of predicting token t; the first one's is ignored, nothing predicts it."""

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.token_ids.shape != self.weights.shape:
            raise ValueError(
                f"token_ids {self.token_ids.shape} and weights {self.weights.shape} differ in shape"
            )

    def masked(self) -> MaskedSequence:
        """With the tokens whose weight counts."""
        return MaskedSequence(
            self.token_ids, (self.weights > 0) & (np.arange(len(self.weights)) > 0)
        )
