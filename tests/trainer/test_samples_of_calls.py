"""Samples of one call each: every token once, after what it was sampled after, same gradients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mainspring.config.training.algorithm import Aggregation
from mainspring.trajectories.samples import Sample, kept_of, samples_of
from mainspring.trajectories.turns import Call, VersionSpan
from tests.trainer.conftest import MakeModel, largest_gap, weights_of
from tests.trainer.critics import MakeConfig
from trainer.process.rank import TrainerRank

UNHURRIED = settings(deadline=None, max_examples=200)


def tree(rng: np.random.Generator, size: int) -> list[Call]:
    """Random calls, each of which extends an earlier one or begins a branch."""
    calls: list[Call] = []
    for number in range(size):
        place = int(rng.integers(-1, number)) if number else -1
        parent = None if place < 0 else calls[place]
        prompt, reply = rng.integers(1, 5, 2)
        calls.append(
            Call(
                number=number,
                parent=None if parent is None else parent.number,
                prompt_start=0 if parent is None else parent.end,
                prompt_ids=tuple(rng.integers(0, 97, prompt).tolist()),
                completion_ids=tuple(rng.integers(0, 97, reply).tolist()),
                logprobs=tuple((-4.5 + 0.2 * rng.standard_normal(reply)).tolist()),
                spans=(VersionSpan(number % 2, 0, int(reply)),),
                text="",
                finish_reason="stop",
            )
        )
    return calls


def sampled_after(samples: list[Sample]) -> list[tuple[Any, ...]]:
    """Each trained token with all that the trainer knows of it."""
    found = []
    for sample in samples:
        for t in np.flatnonzero(sample.action_mask):
            found.append(
                (
                    tuple(sample.token_ids[: t + 1].tolist()),
                    float(sample.logprobs[t]),
                    int(sample.versions[t]),
                    float(sample.advantages[t]),
                )
            )
    return sorted(found)


@UNHURRIED
@given(seed=st.integers(0, 10**6), size=st.integers(1, 9), chosen=st.booleans())
def test_both_train_the_same_tokens_in_the_same_contexts(
    seed: int, size: int, chosen: bool
) -> None:
    rng = np.random.default_rng(seed)
    calls = tree(rng, size)
    advantage = {call.number: float(np.float32(rng.standard_normal())) for call in calls}
    trained = {n for n in range(size) if rng.random() < 0.7} if chosen else None
    given_of = dict.fromkeys(range(0, size, 2), 0.25)
    both = [
        samples_of(
            "r", calls, advantage, reward=1.0, turn_rewards=given_of, trained=trained, per_call=each
        )
        for each in (False, True)
    ]
    assert sampled_after(both[0]) == sampled_after(both[1])
    num_trained = size if trained is None else len(trained)
    assert len(both[1]) == num_trained
    assert all(sample.action_mask[-1] for sample in both[1])
    given_in = [sorted(r for s in samples for _, r in s.turn_rewards) for samples in both]
    assert given_in[0] == given_in[1]
    assert {s.branch for s in both[1]} <= {s.branch for s in both[0]}


def test_a_turn_without_advantage_counts_with_its_branch() -> None:
    calls = tree(np.random.default_rng(3), 1)
    first = calls[0]
    second = Call(1, 0, first.end, (1,), (2,), (-4.0,), (VersionSpan(0, 0, 1),), "", "stop")
    samples = samples_of("r", [first, second], {0: 0.0, 1: 1.0}, per_call=True)
    assert [sample.carries_advantage for sample in samples] == [False, True]
    assert kept_of(samples) == [True, True]
    assert kept_of(samples_of("r", [first, second], {0: 0.0, 1: 0.0}, per_call=True)) == [False] * 2


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_gradients_are_equal_in_every_aggregation(
    aggregation: Aggregation, make_model: MakeModel, make_config: MakeConfig, tmp_path: Path
) -> None:
    directory = make_model("qwen3")[1]
    config = make_config(
        aggregation=aggregation, aggregation_length=64, optimizer={"eps": 1e-6}, entropy_coef=0.01
    )
    rng = np.random.default_rng(5)
    rollouts = {f"r{n}": tree(rng, 4) for n in range(4)}
    advantages = {
        r: {c: float(rng.standard_normal()) * (c != 1) for c in range(4)} for r in rollouts
    }
    found = []
    for per_call in (False, True):
        samples = [
            sample
            for rollout, calls in rollouts.items()
            for sample in samples_of(rollout, calls, advantages[rollout], per_call=per_call)
        ]
        rank = TrainerRank(config, directory)
        metrics = rank.train_step(samples, step=0, current_version=0)
        found.append((metrics, weights_of(rank, tmp_path / str(per_call)), len(samples)))
    (whole, weights, num), (split, others, num_split) = found
    assert num_split > num
    assert split.num_tokens == whole.num_tokens
    assert split.loss == pytest.approx(whole.loss, abs=1e-6)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert largest_gap(weights, others) < 1e-5


def test_a_penalty_in_the_reward_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ValidationError, match="has a token pay for all that follows"):
        make_config(samples="call", kl={"coef": 0.1, "where": "reward"})
