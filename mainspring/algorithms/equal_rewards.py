"""Whether the rewards of a group are equal: pure arithmetic, which estimators and filters share."""

from collections.abc import Sequence

FLAT = 1e-12
"""Rewards that differ by no more are equal: sums and means of floats are not exact."""


def is_flat(scored: Sequence[float]) -> bool:
    """Whether nothing tells the rollouts of a group apart: their rewards are equal."""
    return not scored or max(scored) - min(scored) <= FLAT
