"""Step-wise advantages: against sums written out, and what no turn of another may change."""

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.algorithms.choice import (
    advantages_of,
    advantages_of_turns,
    check_algorithms,
    has_turn_advantages,
)
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Std
from mainspring.errors import ConfigError
from mainspring.training.training_faults import AlgorithmBroken
from mainspring.trajectories.turn_places import TurnPlace, turn_places
from mainspring.trajectories.turns import Call, VersionSpan

UNHURRIED = settings(deadline=None)
Rollout = tuple[float | None, int]
"""Reward and number of turns."""
rollouts = st.tuples(
    st.one_of(st.none(), st.floats(-2, 2).map(lambda x: round(x, 3))), st.integers(0, 5)
)
groups = st.lists(rollouts, min_size=2, max_size=6)


def line(num_turns: int) -> list[TurnPlace]:
    return [TurnPlace(n, num_turns - 1 - n) for n in range(num_turns)]


def found(group: Sequence[Rollout], **fields: object) -> list[list[float] | None]:
    trainer = TrainerConfig.model_validate({"advantage": "step_wise", **fields})
    return advantages_of_turns([r for r, _ in group], [line(n) for _, n in group], trainer)


@pytest.mark.parametrize("std", Std)
@UNHURRIED
@given(group=groups, discount=st.sampled_from([1.0, 0.9, 0.5]))
def test_each_step_group_by_hand(std: Std, group: list[Rollout], discount: float) -> None:
    answer = found(group, std=std, turn_discount=discount)
    for n in range(5):
        at = [
            (i, r * discount ** (t - 1 - n))
            for i, (r, t) in enumerate(group)
            if r is not None and n < t
        ]
        values = [value for _, value in at]
        for i, value in at:
            of_rollout = answer[i]
            assert of_rollout is not None
            if is_flat(values):
                assert of_rollout[n] == 0.0
                continue
            scale = {
                Std.NONE: 1.0,
                Std.POPULATION: statistics.pstdev(values) + 1e-4,
                Std.UNBIASED: statistics.stdev(values) + 1e-6,
            }[std]
            expected = (value - statistics.fmean(values)) / scale
            assert of_rollout[n] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@UNHURRIED
@given(group=groups)
def test_masked_rollouts_have_none_and_move_no_other(group: list[Rollout]) -> None:
    answer = found(group)
    assert [each is None for each in answer] == [reward is None for reward, _ in group]
    without = found([each for each in group if each[0] is not None])
    assert without == [each for each in answer if each is not None]


@UNHURRIED
@given(rewards=st.lists(rollouts.map(lambda each: each[0]), min_size=2, max_size=6))
def test_rollouts_of_one_turn_each_have_the_advantages_of_grpo(rewards: list[float | None]) -> None:
    answer = found([(reward, 1) for reward in rewards])
    one_each = [None if each is None else each[0] for each in answer]
    assert one_each == advantages_of(rewards, TrainerConfig())
    assert one_each == advantages_of(rewards, TrainerConfig(advantage="step_wise"))


def test_a_late_turn_is_compared_with_those_that_came_so_far() -> None:
    long, short, failed = found([(1.0, 2), (0.0, 1), (0.0, 2)], std="none")
    third = pytest.approx(1 / 3)
    assert long == [1 - third.expected, 0.5]
    assert (short, failed) == ([-third.expected], [-third.expected, -0.5])
    # equal rewards of unequal length differ once what follows is discounted
    early, late = found([(1.0, 1), (1.0, 2)], std="none", turn_discount=0.5)
    assert (early, late) == ([0.25], [-0.25, 0.0])


#   0 - 1 - 3
#     `- 2
#   4
def call(number: int, parent: int | None, start: int) -> Call:
    spans = (VersionSpan(0, 0, 1),)
    return Call(number, parent, start, (1,), (2,), (-0.5,), spans, "x", "stop")


TREE = [call(0, None, 0), call(1, 0, 2), call(2, 0, 2), call(3, 1, 4), call(4, None, 0)]


def test_a_shared_turn_has_its_place_in_the_branch_that_trains_it() -> None:
    assert turn_places("r", TREE) == {
        0: TurnPlace(0, 1),  # of the branch 0 - 2, which comes first
        2: TurnPlace(1, 0),
        1: TurnPlace(1, 1),
        3: TurnPlace(2, 0),
        4: TurnPlace(0, 0),
    }
    # context counts as a turn before, and has no advantage
    assert turn_places("r", TREE, {3}) == {3: TurnPlace(2, 0)}
    assert turn_places("r", [], None) == {}


class Own:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __call__(self, rewards_G: object, trainer: object) -> object:
        raise AssertionError("it is asked for the turns alone")

    def of_turns(self, rewards_G: object, turns_GN: object, trainer: object) -> object:
        return self._answer


class Both(Own):
    def over_batch(self, advantages_NG: object, trainer: object) -> object:
        return advantages_NG


good, too_few = Own([[0.5, 1], None]), Own([[0.5, 0.5]])
of_another_length, scores_the_masked = Own([[0.5], None]), Own([[0.5, 0.5], [1.0]])
no_number, both = Own([[0.5, float("nan")], None]), Both(None)


def test_an_estimator_of_your_own_may_tell_turns_apart() -> None:
    trainer = TrainerConfig(advantage=f"{__name__}:good")
    check_algorithms(trainer)
    assert has_turn_advantages(trainer) and not has_turn_advantages(TrainerConfig())
    answer = advantages_of_turns([1.0, None], [line(2), line(1)], trainer)
    assert answer == [[0.5, 1.0], None]
    with pytest.raises(ConfigError, match="both over_batch and of_turns"):
        check_algorithms(TrainerConfig(advantage=f"{__name__}:both"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("too_few", "for 2 rewards"),
        ("of_another_length", r"returned \[0.5\] for 2 turns"),
        ("scores_the_masked", r"returned \[1.0\] for the reward None"),
        ("no_number", "returned nan, expected a finite number"),
    ],
)
def test_what_is_no_advantage_of_turns_is_refused(name: str, problem: str) -> None:
    trainer = TrainerConfig(advantage=f"{__name__}:{name}")
    with pytest.raises(AlgorithmBroken, match=problem):
        advantages_of_turns([1.0, None], [line(2), line(1)], trainer)
