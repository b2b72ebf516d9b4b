"""How far a pass of the engine is padded, so that a row's bits do not depend on the rows beside it.

A library may choose another kernel for few rows than for many, and attention adds keys in blocks.
Padding to where its choice no longer changes gives every request the bits that it has in a large
batch, and that the trainer computes. Imported by the engine's model, attention and self-test.
"""

from dataclasses import dataclass

import torch

from mainspring.artifacts.batch_invariance import KEY_BLOCK, ROW_BLOCK, whole_blocks


@dataclass(frozen=True, slots=True)
class Padding:
    rows: int = 1
    """Least rows of a product."""
    queries: int = 1
    """The queries of a head of keys and values are a multiple of this."""
    keys: int = 1
    """The keys of a query are a multiple of this."""

    def of_keys(self, num_keys: int) -> int:
        return whole_blocks(num_keys, self.keys)

    def of_queries(self, num_queries: int) -> int:
        return whole_blocks(num_queries, self.queries)

    def of_rows(self, num_rows: int) -> int:
        return max(num_rows, self.rows)


NONE = Padding()
WHOLE = Padding(rows=ROW_BLOCK, queries=ROW_BLOCK, keys=KEY_BLOCK)
"""Enough on every processor that was tried. Which fewer rows are enough on a machine is found by
`engine.model.self_test`."""


def padded(values: torch.Tensor, length: int, dim: int = 0) -> torch.Tensor:
    """With zeros behind, up to `length` of dimension `dim`."""
    missing = length - values.shape[dim]
    if not missing:
        return values
    shape = list(values.shape)
    shape[dim] = missing
    return torch.cat([values, values.new_zeros(shape)], dim)
