"""Batches of the supervised warm start: copying random segments, then the form of a rollout.

Invariant: a rollout is tokenised here exactly as it is when served: the chat template over the
two opening messages with the generation prompt, then each reply up to its end token, then each
observation wrapped as the next turn. Weights set how much predicting each token counts.
"""

import random
from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from bundled.generator import draw_instance
from bundled.trajectories import warm_start_messages
from mainspring.agents.protocol import Message
from mainspring.trajectories.sequences import WeightedSequence

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
    rng: random.Random,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    context_loss_weight: float,
) -> list[WeightedSequence]:
    """Fresh training tasks, each with the rollout that tries one random plausible edit."""
    batch = []
    for _ in range(batch_size):
        instance = draw_instance(rng, "train", "warm-start")
        messages = warm_start_messages(instance, rng)
        batch.append(encode_rollout(tokenizer, messages, context_loss_weight))
    return batch


def encode_rollout(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], context_loss_weight: float
) -> WeightedSequence:
    """Tokens of system, user, then replies and observations in turn, ending with a reply."""
    token_ids: list[int] = []
    weights: list[float] = []

    def append(text: str, weight: float) -> None:
        new = tokenizer.encode(text, add_special_tokens=False)
        token_ids.extend(new)
        weights.extend([weight] * len(new))

    opening = tokenizer.apply_chat_template(
        [{"role": m["role"], "content": m["content"]} for m in messages[:2]],
        add_generation_prompt=True,
        tokenize=False,
    )
    append(str(opening), context_loss_weight)
    for message in messages[2:]:
        if message["role"] == "assistant":
            append(f"{message['content']}<|im_end|>", 1.0)
        else:
            append(
                f"\n<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n",
                context_loss_weight,
            )
    return WeightedSequence(np.array(token_ids, np.int32), np.array(weights, np.float32))
