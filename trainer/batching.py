"""Which sequences share a micro-batch, and which rank computes it. Pure arithmetic on lengths.

Invariants: every sequence is in exactly one micro-batch; rows are padded to the longest, and the
padded size stays within the token budget unless one sequence alone exceeds it; every rank gets
the same number of micro-batches; equal input gives equal output.
"""

from collections.abc import Sequence

MicroBatch = list[int]
"""Indices of sequences."""


def pack(
    lengths_N: Sequence[int], *, max_tokens: int, num_ranks: int = 1
) -> list[list[MicroBatch]]:
    """Micro-batches of each rank. Some are empty when there are fewer sequences than ranks."""
    longest_first = sorted(range(len(lengths_N)), key=lambda n: (-lengths_N[n], n))
    batches: list[MicroBatch] = []
    for index in longest_first:
        # sorted: the first row of a batch is its longest, and neighbours need little padding
        if batches and lengths_N[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])

    def padded_size(batch: MicroBatch) -> int:
        return lengths_N[batch[0]] * len(batch) if batch else 0

    while len(batches) % num_ranks:
        largest = max((b for b in batches if len(b) > 1), key=padded_size, default=None)
        if largest is None:
            batches.append([])
            continue
        batches.append(largest[len(largest) // 2 :])
        del largest[len(largest) // 2 :]
    batches.sort(key=padded_size, reverse=True)
    return [batches[rank::num_ranks] for rank in range(num_ranks)]
