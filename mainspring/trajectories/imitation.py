"""Samples for supervised training, and the order in which a run takes them. Pure; numpy only.

Invariants: a sample to imitate is a `Sample` without log-probs, whose action tokens all count
alike; which samples a step takes is a function of the run's seed, the number of samples and the
step alone.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from mainspring.trajectories.sequences import WeightedSequence


def to_imitate(
    origin: str, branch: int, token_ids: NDArray[np.int32], action_mask: NDArray[np.bool_]
) -> Sample:
    """`origin`: the rollout, or file and line."""
    length = len(token_ids)
    # Nothing predicts the first token.
    trained = action_mask & (np.arange(length) > 0)
    return Sample(
        rollout=origin,
        branch=branch,
        token_ids=token_ids,
        action_mask=trained,
        logprobs=np.zeros(length, np.float32),
        versions=np.full(length, NOT_SAMPLED, np.int32),
        advantages=trained.astype(np.float32),
    )


def weighted(sample: Sample) -> WeightedSequence:
    return WeightedSequence(sample.token_ids, sample.action_mask.astype(np.float32))


@dataclass(frozen=True, slots=True)
class DataOrder:
    """Every epoch is a shuffle of its own; steps take its samples one batch after the other."""

    seed: int
    num_samples: int
    batch_size: int
    num_epochs: int | None = None
    """After the last one there is nothing; None: epochs without end."""

    def batch(self, step: int) -> list[int]:
        """Positions of the samples of a step, which counts from 1."""
        first, last = (step - 1) * self.batch_size, step * self.batch_size
        if self.num_epochs is not None:
            last = min(last, self.num_epochs * self.num_samples)
        return [
            _shuffled(self.seed, epoch, self.num_samples)[index]
            for epoch, index in (divmod(place, self.num_samples) for place in range(first, last))
        ]


@lru_cache(maxsize=2)  # a batch may reach into the next epoch
def _shuffled(seed: int, epoch: int, num_samples: int) -> tuple[int, ...]:
    positions = list(range(num_samples))
    random.Random(f"sft/{seed}/{epoch}").shuffle(positions)
    return tuple(positions)
