"""Requests in random company, and the bits of every logit row they got.

    python -m tests.engine.company MODEL SEED THREADS

prints a digest over all rows as JSON: equal in two processes whose engines give equal bits.
"""

import hashlib
import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from engine.model import self_test
from engine.model.served_model import ServedModel
from engine.model.slots import SlotPool
from engine.scheduler import PauseMode, Scheduler
from engine.sequences import SamplingOptions, Sequence

NUM_REQUESTS = 14
MAX_PROMPT = 620
"""Over one block of keys."""


class Noting(ServedModel):
    """Notes the logits after each sequence of tokens it sees."""

    def __init__(self, directory: Path) -> None:
        self.rows: defaultdict[tuple[int, ...], set[bytes]] = defaultdict(set)
        super().__init__(directory, is_reproducible=True)

    def forward(
        self,
        pool: SlotPool,
        new_ids: list[list[int]],
        num_decoding: int,
        adapters: list[str | None] | None = None,
    ) -> torch.Tensor:
        logits = super().forward(pool, new_ids, num_decoding, adapters)
        for slot in range(len(new_ids)):
            seen = tuple(pool.tokens(slot))
            self.rows[seen].add(logits[slot].numpy().tobytes())
        return logits


def checked_model(directory: Path) -> Noting:
    model = Noting(directory)
    self_test.check(model)
    model.rows.clear()
    return model


def play(model: Noting, seed: int, max_batch: int) -> list[list[int]]:
    """Requests that join at random, share beginnings, are retracted and continued from a part of
    their reply; what each came to."""
    source = random.Random(seed)
    scheduler = Scheduler(model, weight_version="0", max_batch=max_batch)
    longest = min(MAX_PROMPT, model.context_length - 40)
    beginnings = [[source.randrange(3, 300) for _ in range(longest)] for _ in range(3)]
    sequences: list[Sequence] = []
    while len(sequences) < NUM_REQUESTS or scheduler.busy:
        action = source.random()
        if action < 0.35 and len(sequences) < NUM_REQUESTS:
            shared = source.choice(beginnings)[: source.randint(1, longest)]
            parts = [s.ids[: s.prompt_tokens + 2] for s in sequences if len(s.logprobs) > 2]
            ids = source.choice(parts) if parts and source.random() < 0.3 else shared
            sequences.append(request(ids, seed + len(sequences), source.randint(1, 12)))
            scheduler.submit(sequences[-1])
        elif action < 0.42:
            scheduler.pause(PauseMode.RETRACT)
            scheduler.resume()
        elif action < 0.45:
            scheduler.flush()
        elif scheduler.busy:
            scheduler.step()
    return [sequence.ids for sequence in sequences]


def request(ids: list[int], seed: int, num_tokens: int) -> Sequence:
    options = SamplingOptions(max_new_tokens=num_tokens, sampling_seed=seed)
    return Sequence(str(seed), list(ids), options, frozenset(), len(ids))


def alone(model: Noting, ids: list[int]) -> None:
    """The same tokens with nothing beside them, at once."""
    model.forward(model.pool(1), [ids], 0)


def digest(directory: Path, seed: int, threads: int) -> dict[str, Any]:
    """Of all rows, how many there were and how many had more than one value of bits."""
    torch.set_num_threads(threads)
    model = checked_model(directory)
    for ids in play(model, seed, 4):
        alone(model, ids)
    torch.set_num_threads(1)
    found = hashlib.sha256()
    for ids, rows in sorted(model.rows.items()):
        found.update(str(ids).encode() + b"".join(sorted(rows)))
    several = sum(len(rows) > 1 for rows in model.rows.values())
    return {"digest": found.hexdigest(), "rows": len(model.rows), "several": several}


if __name__ == "__main__":
    print(json.dumps(digest(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
