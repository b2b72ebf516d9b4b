"""Batches of the supervised warm start: copying random segments, then the form of a rollout.

Invariant: a rollout has here the tokens that it has when it is served, a sequence for each branch,
as in a step (`mainspring.trajectories.samples`). Weights set how much predicting each token counts.
"""

import random
from collections.abc import Sequence

import numpy as np

from bundled.generator import draw_instance
from bundled.trajectories import Writer
from mainspring.trajectories.samples import samples_of
from mainspring.trajectories.sequences import WeightedSequence
from mainspring.trajectories.turns import Call

NUM_SPECIAL_TOKENS = 3
"""Ids below are end of text and ChatML's marks; they never occur in copied segments."""
COPY_LENGTH = 32
MIN_COPY_PERIOD = 3
"""Short sequences that repeat several times teach copying within a hundred steps; a few long
segments do not in several hundred."""


def copy_batch(rng: random.Random, vocab_size: int, batch_size: int) -> list[WeightedSequence]:
    """Random segments repeated to a fixed length; only the repetitions count.

    The period is drawn once for the batch, so that it packs without padding.
    """
    period = rng.randint(MIN_COPY_PERIOD, COPY_LENGTH // 2)
    draw = np.random.default_rng(rng.getrandbits(64))
    # The first token of the first repetition cannot be known.
    weights = np.zeros(COPY_LENGTH, np.float32)
    weights[period + 1 :] = 1.0
    return [
        WeightedSequence(
            np.resize(
                draw.integers(NUM_SPECIAL_TOKENS, vocab_size, period, dtype=np.int32), COPY_LENGTH
            ),
            weights.copy(),
        )
        for _ in range(batch_size)
    ]


def supervised_batch(
    rng: random.Random, writer: Writer, batch_size: int, context_loss_weight: float
) -> list[WeightedSequence]:
    """Fresh training tasks, each with the rollout that tries one random plausible edit."""
    batch: list[WeightedSequence] = []
    for _ in range(batch_size):
        instance = draw_instance(rng, "train", "warm-start")
        batch += sequences_of(writer.draw(instance, rng).calls, context_loss_weight)
    return batch


def sequences_of(calls: Sequence[Call], context_loss_weight: float) -> list[WeightedSequence]:
    """The branches of a rollout. Replies count once, in the first branch that has them; prompts and
    observations in the first branch alone: later ones repeat them, and would outweigh the edit."""
    return [
        WeightedSequence(
            sample.token_ids,
            np.where(sample.action_mask, 1.0, 0.0 if place else context_loss_weight).astype(
                np.float32
            ),
        )
        for place, sample in enumerate(samples_of("warm start", calls))
    ]
