"""A sequence for supervised training: token ids and how much each token counts in the loss."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class WeightedSequence:
    token_ids: NDArray[np.int32]
    """[T]"""
    weights: NDArray[np.float32]
    """[T] weight of predicting token t; the first one's is ignored, nothing predicts it."""

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.token_ids.shape != self.weights.shape:
            raise ValueError(
                f"token_ids {self.token_ids.shape} and weights {self.weights.shape} differ in shape"
            )
