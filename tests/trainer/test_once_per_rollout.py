"""A rollout counts once, however many branches it has: in means over sequences, in the
mini-batches, in step-wise baselines and in a critic's reward."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mainspring.algorithms.advantages.step_wise import step_wise
from mainspring.algorithms.gae import gae, gae_of_branches
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Aggregation, Std
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.turn_places import TurnPlace
from tests.trainer.conftest import MakeModel, largest_gap, weights_of
from tests.trainer.critics import MakeConfig
from trainer.losses.aggregation import token_weights
from trainer.process.rank import TrainerRank
from trainer.step.critic import turn_rewards_of
from trainer.step.mini_batch import parts_of

BRANCHES = [("solved", 0), *[("failed", n) for n in range(5)]]
LENGTHS = [10] * 6
SEQUENCES = [each for each in Aggregation if each is not Aggregation.TOKEN_MEAN]


@pytest.mark.parametrize("aggregation", SEQUENCES)
def test_a_failed_rollout_of_five_branches_weighs_as_the_solved_one(
    aggregation: Aggregation,
) -> None:
    """Rewards 1 and 0: advantages of 1/2 and -1/2 add up to nothing."""
    weights = token_weights(aggregation, LENGTHS, 10, BRANCHES)
    per_rollout = [weights[0] * 10, sum(weights[1:]) * 10]
    assert per_rollout[0] == pytest.approx(per_rollout[1])
    summed = sum(w * 10 * a for w, a in zip(weights, [0.5, *[-0.5] * 5], strict=True))
    assert summed == pytest.approx(0)
    if aggregation is Aggregation.SEQ_MEAN_TOKEN_MEAN:
        assert per_rollout == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_rollouts_of_one_branch_have_the_bits_of_samples(aggregation: Aggregation) -> None:
    lengths = [7, 3, 11, 1, 29]
    once = token_weights(aggregation, lengths, 13, [(f"r{n}", 0) for n in range(5)])
    assert once == token_weights(aggregation, lengths, 13)


def test_all_branches_of_a_rollout_are_in_one_mini_batch() -> None:
    rollouts = ["a", "b", "b", "c", "d", "d", "d"]
    assert parts_of(range(7), 2, rollouts) == [[0, 3], [1, 2, 4, 5, 6]]
    assert parts_of(range(7), 9, rollouts) == [[0], [1, 2], [3], [4, 5, 6]]
    assert parts_of([], 3, []) == []
    alone = [f"r{n}" for n in range(7)]
    assert parts_of(range(7), 3, alone) == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.mark.parametrize("std", list(Std))
def test_a_step_wise_baseline_counts_each_rollout_once(std: Std) -> None:
    trainer = TrainerConfig(advantage="step_wise", std=std)
    turns: Sequence[Sequence[TurnPlace]] = [[TurnPlace(0, 0)], [TurnPlace(0, 0)] * 5]
    found = step_wise.of_turns([1.0, 0.0], turns, trainer)
    scale = {Std.POPULATION: 0.500001, Std.UNBIASED: 0.5**0.5 + 1e-6, Std.NONE: 1.0}[std]
    assert found[0] == pytest.approx([0.5 / scale])
    assert found[1] == pytest.approx([-0.5 / scale] * 5)


def test_turns_of_a_single_rollout_keep_their_value() -> None:
    trainer = TrainerConfig(advantage="step_wise", turn_discount=0.5)
    turns = [[TurnPlace(0, 2), TurnPlace(0, 0)], [TurnPlace(1, 0)]]
    assert step_wise.of_turns([1.0, 0.0], turns, trainer) == [[0.25, 1.0], [0.0]]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.5, 1.0)])
def test_a_critic_gives_the_reward_of_a_rollout_once(gamma: float, gae_lambda: float) -> None:
    """Its branches are one episode: the reward comes at the end of the last."""
    rng = np.random.default_rng(0)
    values_N = [rng.normal(size=n).astype(np.float32) for n in (4, 2, 3, 5)]
    rollouts = ["a", "b", "b", "c"]
    rates = {"gamma": gamma, "gae_lambda": gae_lambda}
    found = gae_of_branches(values_N, rollouts, [1.0, 2.0, 2.0, 0.0], **rates)
    both = gae(np.concatenate(values_N[1:3]), 2.0, **rates)
    for n, (start, end) in ((1, (0, 2)), (2, (2, 5))):
        for mine, whole in zip(found[n], both, strict=True):
            assert np.array_equal(mine, whole[start:end])
    for n, reward in ((0, 1.0), (3, 0.0)):
        for mine, alone in zip(found[n], gae(values_N[n], reward, **rates), strict=True):
            assert np.array_equal(mine, alone)
    # Rewards are what deltas hold beyond the values: their sum over a rollout is the reward.
    values = np.concatenate(values_N[1:3]).astype(np.float64)
    ahead = np.append(values[1:], 0.0)
    deltas = gae(values.astype(np.float32), 2.0, gamma=gamma, gae_lambda=0.0)[0]
    assert (deltas - gamma * ahead + values).sum() == pytest.approx(2.0)


def test_a_critic_gives_the_rewards_of_turns_where_they_end() -> None:
    """Over the branches of a rollout, as one stream of rewards."""
    values_N = [np.arange(n, dtype=np.float32) / 7 for n in (4, 2)]
    given_N = [np.array([0.0, 0.5, 0.0, -1.0]), np.array([0.25, 0.0])]
    found = gae_of_branches(
        values_N, ["a", "a"], [2.0, 2.0], gamma=0.9, gae_lambda=0.8, turn_rewards_N=given_N
    )
    values = np.append(np.concatenate(values_N).astype(np.float64), 0.0)
    rewards = np.concatenate(given_N) + np.array([0, 0, 0, 0, 0, 2.0])
    running, expected = 0.0, []
    for t in range(5, -1, -1):
        running = rewards[t] + 0.9 * values[t + 1] - values[t] + 0.72 * running
        expected.insert(0, running)
    assert np.concatenate([each[0] for each in found]) == pytest.approx(expected, abs=1e-12)


def test_a_rewarded_turn_that_is_context_is_given_to_the_token_before(batch: list[Sample]) -> None:
    whole = batch[0]
    actions = np.flatnonzero(whole.action_mask)
    sample = replace(whole, turn_rewards=((int(actions[-1]), 0.5), (int(actions[0]), 0.25)))
    expected = np.zeros(len(actions))
    expected[[0, -1]] = 0.25, 0.5
    assert turn_rewards_of(sample).tolist() == expected.tolist()
    mask = whole.action_mask.copy()
    mask[actions[-2:]] = False
    masked = turn_rewards_of(replace(sample, action_mask=mask)).tolist()
    assert masked == [0.25, *[0.0] * (len(actions) - 4), 0.5]
    mask[actions[:2]] = False  # nothing of the rollout comes before its first turn
    assert turn_rewards_of(replace(sample, action_mask=mask)).tolist()[0] == 0.0


def test_a_rank_weighs_branches_by_their_rollout(
    make_model: MakeModel, make_config: MakeConfig, batch: list[Sample], tmp_path
) -> None:
    """A rollout whose only branch is there twice trains as if it were there once."""
    directory = make_model("qwen3")[1]
    config = make_config(aggregation="seq_mean_token_mean", optimizer={"eps": 1e-6})
    once, twice = TrainerRank(config, directory), TrainerRank(config, directory)
    doubled = [batch[0], replace(batch[0], branch=1), *batch[1:]]
    found = once.train_step(batch, step=0, current_version=0)
    other = twice.train_step(doubled, step=0, current_version=0)
    assert other.loss == pytest.approx(found.loss, abs=1e-6)
    assert other.grad_norm == pytest.approx(found.grad_norm, rel=1e-5)
    gap = largest_gap(weights_of(once, tmp_path / "a"), weights_of(twice, tmp_path / "b"))
    assert gap < 1e-5
