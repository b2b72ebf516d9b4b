"""Generalized advantage estimation: advantages and returns of a rollout's action tokens. Pure.

Source: arXiv 1506.02438. Equals verl's `compute_gae_advantage_return`: what stands between two
action tokens (prompts, observations, tokens that are too old) is skipped and takes no discount. A
rollout ends for good, also where a limit cut it off: nothing is expected after its last action
token. Its branches are one episode, in the order of their last calls: after the last action token
of one the next one begins, and the reward is given once, at the end of the last. Rewards of turns
are given with the turn's last action token. Invariants: equal input gives equal bits, on every
rank; computed in float64. Imported by `trainer.step.critic`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mainspring.algorithms.equal_rewards import FLAT

VARIANCE_EPS = 1e-8
"""Added to the variance, as verl has it."""


def gae(
    values_T: NDArray[np.float32],
    reward: float,
    *,
    gamma: float,
    gae_lambda: float,
    turn_rewards_T: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages [T] and returns [T] of one episode, from the values [T] of the states that its T
    action tokens were sampled in, T > 0; `reward`: given with the last of them;
    `turn_rewards_T`: given with each."""
    values = values_T.astype(np.float64)
    deltas = -values if turn_rewards_T is None else turn_rewards_T - values
    deltas[:-1] += gamma * values[1:]
    deltas[-1] += reward
    decay = gamma * gae_lambda
    sums: list[float] = []
    running = 0.0
    for delta in deltas[::-1].tolist():
        running = delta + decay * running
        sums.append(running)
    advantages = np.array(sums[::-1], np.float64)
    return advantages, advantages + values


def gae_of_branches(
    values_N: Sequence[NDArray[np.float32]],
    rollouts_N: Sequence[str],
    rewards_N: Sequence[float],
    *,
    gamma: float,
    gae_lambda: float,
    turn_rewards_N: Sequence[NDArray[np.float64]] | None = None,
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Advantages and returns of each branch, as it stands; `rollouts_N`: whose it is. Branches of
    one rollout have its reward, and stand in their order. `turn_rewards_N`: as `gae` has them."""
    places: dict[str, list[int]] = {}
    for n, rollout in enumerate(rollouts_N):
        places.setdefault(rollout, []).append(n)
    by_branch: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for branches in places.values():
        advantages, returns = gae(
            np.concatenate([values_N[n] for n in branches]),
            rewards_N[branches[-1]],
            gamma=gamma,
            gae_lambda=gae_lambda,
            turn_rewards_T=None
            if turn_rewards_N is None
            else np.concatenate([turn_rewards_N[n] for n in branches]),
        )
        start = 0
        for n in branches:
            end = start + len(values_N[n])
            by_branch[n] = (advantages[start:end], returns[start:end])
            start = end
    return [by_branch[n] for n in range(len(values_N))]


def whitened(advantages_N: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Advantages of all branches of a batch: minus the mean over their action tokens, divided by
    the unbiased standard deviation. Equal advantages, or a single one, give exact zeros."""
    if not advantages_N:
        return []
    together = np.concatenate(list(advantages_N))
    if together.max() - together.min() <= FLAT:
        return [np.zeros_like(advantages) for advantages in advantages_N]
    mean, variance = together.mean(), together.var(ddof=1)
    scale = np.sqrt(variance + VARIANCE_EPS)
    return [(advantages - mean) / scale for advantages in advantages_N]


def explained_variance(
    values_N: NDArray[np.float32], returns_N: NDArray[np.float64]
) -> float | None:
    """1 - Var(returns - values) / Var(returns), over tokens: 1 of a critic that knows all, 0 of one
    that knows the mean alone. None where returns do not differ."""
    if not len(returns_N) or np.ptp(returns_N) <= FLAT:
        return None
    return float(1.0 - np.var(returns_N - values_N.astype(np.float64)) / np.var(returns_N))
