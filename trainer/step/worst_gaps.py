"""The tokens with the largest log-prob gap among those that this rank compared.

Invariant: nothing is computed but differences of numbers that are there already, and nothing that
training takes is touched. Imported by `trainer.step.policy_step` and `trainer.step.loss_pass`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mainspring.training.trained_rollouts import WORST_TOKENS, TokenGap
from mainspring.trajectories.samples import Sample


def worst_of(
    rows: Sequence[Sample], recomputed_T: NDArray[np.float32], version: int
) -> list[TokenGap]:
    """Pick from the tokens of `version`. `recomputed_T`: of all action tokens of these samples, one
    sample after the other."""
    positions_N = [np.flatnonzero(row.action_mask) for row in rows]
    is_of_version = _joined(
        row.versions[at] == version for row, at in zip(rows, positions_N, strict=True)
    ).astype(np.bool_)
    served_T = _joined(row.logprobs[at] for row, at in zip(rows, positions_N, strict=True))
    sizes_T = np.abs(recomputed_T.astype(np.float64) - served_T)
    sizes_T = np.where(is_of_version, np.nan_to_num(sizes_T, nan=np.inf, posinf=np.inf), -1.0)
    chosen = np.arange(len(sizes_T))
    if len(chosen) > WORST_TOKENS:
        chosen = np.argpartition(-sizes_T, WORST_TOKENS)[:WORST_TOKENS]
    ends = np.cumsum([len(at) for at in positions_N])
    gaps: list[TokenGap] = []
    for place in chosen[sizes_T[chosen] >= 0]:
        n = int(np.searchsorted(ends, place, side="right"))
        start = int(ends[n - 1]) if n else 0
        row = rows[n]
        gaps.append(
            TokenGap(
                rollout=row.rollout,
                branch=row.branch,
                position=int(positions_N[n][place - start]),
                served=float(served_T[place]),
                recomputed=float(recomputed_T[place]),
            )
        )
    return gaps


def _joined(parts: Iterable[NDArray]) -> NDArray:
    return np.concatenate([np.zeros(0, np.float32), *parts])
