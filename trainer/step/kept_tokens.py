"""Recomputed log-probs and entropies of all tokens of a step, where the campaign keeps them.

Invariants: only numbers that the step computes anyway are kept, as they were when the step first
had them; nothing that training takes is touched. Made by `trainer.step.policy_step` for each step,
filled by it and by `trainer.step.loss_pass`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mainspring.training.trained_rollouts import KeptSample
from mainspring.trajectories.samples import Sample
from trainer.step.mini_batch import Recomputed


class KeptTokens:
    def __init__(self, samples: Sequence[Sample]) -> None:
        """`samples`: those of the step, whose places are told."""
        self._places = {id(sample): n for n, sample in enumerate(samples)}
        self._logprobs: dict[int, NDArray[np.float32]] = {}
        self._entropies: dict[int, NDArray[np.float32]] = {}

    def add_recomputed(self, rows: Sequence[Sample], recomputed: Recomputed) -> None:
        """Keep what was computed without a gradient."""
        for n, logprobs in recomputed.items():
            place = self._places[id(rows[n])]
            self._logprobs.setdefault(place, logprobs[rows[n].action_mask].astype(np.float32))

    def add_pass(
        self,
        rows: Sequence[Sample],
        logprobs_T: NDArray[np.float32],
        entropies_T: NDArray[np.float32],
    ) -> None:
        """Keep those of a micro-batch's action tokens, sample after sample."""
        ends = np.cumsum([row.num_action_tokens for row in rows])[:-1]
        parts = zip(rows, np.split(logprobs_T, ends), np.split(entropies_T, ends), strict=True)
        for row, logprobs, entropies in parts:
            place = self._places[id(row)]
            self._logprobs.setdefault(place, logprobs.astype(np.float32))
            self._entropies.setdefault(place, entropies.astype(np.float32))

    @property
    def by_sample(self) -> dict[int, KeptSample]:
        """By the sample's place in the step; of this rank's share."""
        return {
            place: KeptSample(logprobs, self._entropies.get(place))
            for place, logprobs in self._logprobs.items()
        }
