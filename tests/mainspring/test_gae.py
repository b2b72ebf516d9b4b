"""Generalized advantage estimation: against sums written out and verl's loop over masked tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.algorithms.gae import explained_variance, gae, whitened

UNHURRIED = settings(deadline=None)
numbers = st.floats(-3, 3, width=32)
rates = st.sampled_from([0.0, 1.0, 0.5, 0.99])
Branch = tuple[list[float], float]
"""Values and reward."""
branches = st.lists(
    st.tuples(st.lists(numbers, min_size=1, max_size=8), numbers), min_size=1, max_size=4
)


def found(
    branch: Branch, gamma: float, gae_lambda: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = np.array(branch[0], np.float32)
    return values, *gae(values, branch[1], gamma=gamma, gae_lambda=gae_lambda)


@UNHURRIED
@given(branches=branches, gamma=rates, gae_lambda=rates)
def test_it_is_the_sum_of_discounted_deltas_up_to_the_end_of_each_branch(
    branches: list[Branch], gamma: float, gae_lambda: float
) -> None:
    """In one stream of tokens: a branch's last one is done, and nothing behind it counts."""
    values = [value for values, _ in branches for value in values]
    dones = [n == len(values) - 1 for values, _ in branches for n in range(len(values))]
    rewards = [
        reward if n == len(values) - 1 else 0.0
        for values, reward in branches
        for n in range(len(values))
    ]
    expected = []
    for t in range(len(values)):
        total, factor = 0.0, 1.0
        for later in range(t, len(values)):
            after = 0.0 if dones[later] else values[later + 1]
            total += factor * (rewards[later] + gamma * after - values[later])
            factor *= gamma * gae_lambda
            if dones[later]:
                break
        expected.append(total)
    answers = [found(branch, gamma, gae_lambda) for branch in branches]
    advantages = np.concatenate([each[1] for each in answers])
    assert advantages == pytest.approx(expected, rel=1e-9, abs=1e-9)
    for values_T, of_branch, returns in answers:
        assert returns == pytest.approx(of_branch + values_T, abs=1e-12)


@UNHURRIED
@given(branch=st.tuples(st.lists(numbers, min_size=1, max_size=8), numbers), rate=rates)
def test_edges_of_gamma_and_lambda(branch: Branch, rate: float) -> None:
    values, reward = np.array(branch[0], np.float64), branch[1]
    num_after = np.arange(len(values))[::-1]
    _, to_the_end, returns = found(branch, rate, 1.0)
    assert returns == pytest.approx(reward * rate**num_after, abs=1e-9)
    assert to_the_end == pytest.approx(reward * rate**num_after - values, abs=1e-9)
    _, one_step, _ = found(branch, rate, 0.0)
    nexts = np.append(values[1:], 0.0)
    assert one_step == pytest.approx(
        np.where(num_after == 0, reward, 0.0) + rate * nexts - values, abs=1e-9
    )
    _, blind, _ = found(branch, 0.0, rate)
    assert blind == pytest.approx(np.where(num_after == 0, reward, 0.0) - values, abs=1e-9)


@UNHURRIED
@given(
    branch=st.tuples(st.lists(numbers, min_size=1, max_size=6), numbers),
    gaps=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    gamma=rates,
    gae_lambda=rates,
)
def test_tokens_between_actions_are_skipped_as_verl_skips_them(
    branch: Branch, gaps: list[int], gamma: float, gae_lambda: float
) -> None:
    values, _, _ = found(branch, gamma, gae_lambda)
    mask, padded = [], []
    for value, gap in zip(values.tolist(), gaps, strict=False):
        mask += [1, *[0] * gap]
        padded += [value, *[7.5] * gap]  # what a critic may tell of an observation
    next_value, running = 0.0, 0.0
    rewards = [0.0] * len(mask)
    rewards[max(t for t, is_action in enumerate(mask) if is_action)] = branch[1]
    expected = []
    for t in reversed(range(len(mask))):
        candidate = rewards[t] + gamma * next_value - padded[t] + gamma * gae_lambda * running
        next_value = padded[t] if mask[t] else next_value
        running = candidate if mask[t] else running
        if mask[t]:
            expected.append(running)
    assert found(branch, gamma, gae_lambda)[1] == pytest.approx(expected[::-1], abs=1e-9)


def test_advantages_are_whitened_over_all_tokens_of_a_batch() -> None:
    first, second = whitened([np.array([1.0, 2.0]), np.array([6.0])])
    together = np.concatenate([first, second])
    assert together.mean() == pytest.approx(0, abs=1e-12)
    assert together.var(ddof=1) == pytest.approx(1, abs=1e-6)
    assert (second > first).all()
    flat = whitened([np.array([0.3, 0.1 + 0.2]), np.array([0.3])])
    assert [each.tolist() for each in flat] == [[0.0, 0.0], [0.0]]
    assert [each.tolist() for each in whitened([np.array([2.0])])] == [[0.0]]
    assert whitened([]) == []


def test_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 1.0])
    assert explained_variance(returns.astype(np.float32), returns) == 1.0
    assert explained_variance(np.full(3, 0.25, np.float32), returns) == pytest.approx(0)
    assert (explained_variance((-returns).astype(np.float32), returns) or 0) < 0
    assert explained_variance(np.ones(2, np.float32), np.array([1.0, 1.0])) is None
    assert explained_variance(np.zeros(0, np.float32), np.zeros(0)) is None
