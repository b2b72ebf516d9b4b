"""Which sequences share a micro-batch, and which rank computes it. Pure arithmetic on lengths.

Sequences are packed one after the other, without padding between them. Invariants: every sequence
is in exactly one micro-batch; a micro-batch stays within the token budget unless one sequence alone
exceeds it; every rank gets the same number of micro-batches, of about the same cost; equal input
gives equal output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MicroBatch = list[int]
"""Indices of sequences."""
ATTENTION_LENGTH = 47_000
"""Length at which attention costs as much as the weights: in Qwen3-8B a token costs 2 x 193M
operations in a layer's weights and 8,192 for each token of its sequence in causal attention. It
decides who computes what, not the result."""


@dataclass(frozen=True, slots=True)
class PackedSequences:
    """Sequences that stand one after the other."""

    lengths_N: tuple[int, ...]
    """Tokens of each sequence, on all ranks of a context-parallel group together."""
    as_served: bool = False
    """Whether sums have the order of the CPU engine's (`mainspring.artifacts.batch_invariance`)."""


def cost(length: int) -> float:
    """Cost of a sequence, in tokens without attention."""
    return length * (1 + length / ATTENTION_LENGTH)


def pack(
    lengths_N: Sequence[int], *, max_tokens: int, num_ranks: int = 1
) -> list[list[MicroBatch]]:
    """Micro-batches of each rank. Some are empty when there are fewer sequences than ranks."""
    longest_first = sorted(range(len(lengths_N)), key=lambda n: (-lengths_N[n], n))
    batches: list[MicroBatch] = []
    sizes: list[int] = []
    for index in longest_first:
        for n, size in enumerate(sizes):
            if size + lengths_N[index] <= max_tokens:
                batches[n].append(index)
                sizes[n] += lengths_N[index]
                break
        else:
            batches.append([index])
            sizes.append(lengths_N[index])

    def costs(batch: MicroBatch) -> float:
        return sum(cost(lengths_N[n]) for n in batch)

    while len(batches) % num_ranks:
        largest = max((b for b in batches if len(b) > 1), key=costs, default=None)
        if largest is None:
            batches.append([])
            continue
        batches.append(largest[1::2])
        del largest[1::2]
    per_rank = len(batches) // num_ranks
    ranks: list[list[MicroBatch]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    for batch in sorted(batches, key=costs, reverse=True):
        rank = min((r for r in range(num_ranks) if len(ranks[r]) < per_rank), key=loads.__getitem__)
        ranks[rank].append(batch)
        loads[rank] += costs(batch)
    return ranks
