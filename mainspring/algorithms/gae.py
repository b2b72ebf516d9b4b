"""Generalized advantage estimation: advantages and returns of a branch's action tokens. Pure.

Source: arXiv 1506.02438. Equals verl's `compute_gae_advantage_return`: what stands between two
action tokens (prompts, observations, tokens that are too old) is skipped and takes no discount. A
branch ends for good, also where a limit cut it off: nothing is expected after its last action
token. Invariants: equal input gives equal bits, on every rank; computed in float64. Imported by
`trainer.critic`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mainspring.algorithms.equal_rewards import FLAT

VARIANCE_EPS = 1e-8
"""Added to the variance, as verl has it."""


def gae(
    values_T: NDArray[np.float32], reward: float, *, gamma: float, gae_lambda: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages [T] and returns [T] of one branch, from the values [T] of the states that its T
    action tokens were sampled in, T > 0; `reward`: given with the last of them."""
    values = values_T.astype(np.float64)
    deltas = -values
    deltas[:-1] += gamma * values[1:]
    deltas[-1] += reward
    decay = gamma * gae_lambda
    found: list[float] = []
    running = 0.0
    for delta in deltas[::-1].tolist():
        running = delta + decay * running
        found.append(running)
    advantages = np.array(found[::-1], np.float64)
    return advantages, advantages + values


def whitened(advantages_N: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Of all branches of a batch: minus the mean over their action tokens, divided by the unbiased
    standard deviation. Equal advantages, or a single one, give exact zeros."""
    if not advantages_N:
        return []
    together = np.concatenate(list(advantages_N))
    if together.max() - together.min() <= FLAT:
        return [np.zeros_like(each) for each in advantages_N]
    mean, variance = together.mean(), together.var(ddof=1)
    scale = np.sqrt(variance + VARIANCE_EPS)
    return [(each - mean) / scale for each in advantages_N]


def explained_variance(
    values_N: NDArray[np.float32], returns_N: NDArray[np.float64]
) -> float | None:
    """1 - Var(returns - values) / Var(returns), over tokens: 1 of a critic that knows all, 0 of one
    that knows the mean alone. None where returns do not differ."""
    if not len(returns_N) or np.ptp(returns_N) <= FLAT:
        return None
    return float(1.0 - np.var(returns_N - values_N.astype(np.float64)) / np.var(returns_N))
