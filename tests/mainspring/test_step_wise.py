"""Step-wise advantages: against sums written out, and what no turn of another may change."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

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
from mainspring.trajectories.turn_rewards import TurnRewards
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
            if len(values) == 1:
                assert of_rollout[n] == value
                continue
            if is_flat(values):
                assert of_rollout[n] == 0.0
                continue
            scale = {
                Std.NONE: 1.0,
                Std.POPULATION: statistics.pstdev(values) + 1e-6,
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
    if sum(reward is not None for reward in rewards) > 1:
        one_each = [None if each is None else each[0] for each in answer]
        expected = advantages_of(rewards, TrainerConfig())
        for mine, theirs in zip(one_each, expected, strict=True):
            # What is added to the deviation is smaller.
            assert mine == (None if theirs is None else pytest.approx(theirs, rel=0.2))
    assert advantages_of(rewards, TrainerConfig(advantage="step_wise")) == advantages_of(
        rewards, TrainerConfig()
    )


def test_a_late_turn_is_compared_with_those_that_came_so_far() -> None:
    long, short, failed = found([(1.0, 2), (0.0, 1), (0.0, 2)], std="none")
    third = pytest.approx(1 / 3)
    assert long == [1 - third.expected, 0.5]
    assert (short, failed) == ([-third.expected], [-third.expected, -0.5])
    # equal rewards of unequal length differ once what follows is discounted
    early, late = found([(1.0, 1), (1.0, 2)], std="none", turn_discount=0.5)
    assert (early, late) == ([0.25], [-0.25, 1.0])  # alone at its second turn: it keeps its value


def scored(num_turns: int, **rewards: float | None) -> list[TurnPlace]:
    places = line(num_turns)
    for name, reward in rewards.items():
        number = int(name.removeprefix("t"))
        places[number] = replace(places[number], reward=reward)
    return places


Z = 1 / (1 + 1e-6)
"""Of two values 2 apart, whose population deviation is 1."""
WORKED: list[tuple[list[float | None], list[list[TurnPlace]], list[list[float] | None]]] = [
    # a score and the outcome are added up before turns are compared
    ([1.0, 0.0], [scored(1, t0=0.5), scored(1, t0=-0.5)], [[Z], [-Z]]),
    # equal sums of unequal parts: exact zeros
    ([1.0, 0.0], [scored(1, t0=-1.0), scored(1)], [[0.0], [0.0]]),
    # one turn more than the other: it is alone, and keeps its value
    ([0.0, 0.0], [scored(2, t0=1.0, t1=0.25), scored(1, t0=-1.0)], [[Z, 0.25], [-Z]]),
    # alone with the outcome
    ([1.0, -1.0], [scored(2, t1=0.5), scored(1)], [[Z, 1.5], [-Z]]),
    # a turn that was judged belongs to its call, also after one that ran nothing
    (
        [0.0, 0.0],
        [scored(3, t0=1.0, t2=1.0), scored(3, t2=-1.0, t0=-1.0)],
        [[Z, 0, Z], [-Z, 0, -Z]],
    ),
    # a missing one is no zero: the others are compared without it
    ([0.0] * 3, [scored(1, t0=None), scored(1, t0=1.0), scored(1, t0=-1.0)], [[0.0], [Z], [-Z]]),
    # with one missing, the other is alone
    ([0.0, 0.0], [scored(1, t0=None), scored(1, t0=0.75)], [[0.0], [0.75]]),
    # all are missing
    ([1.0, 0.0], [scored(1, t0=None), scored(1, t0=None)], [[0.0], [0.0]]),
    # a masked rollout moves no other's
    (
        [None, 0.0, 0.0],
        [scored(1, t0=9.0), scored(1, t0=1.0), scored(1, t0=-1.0)],
        [None, [Z], [-Z]],
    ),
    # no outcome, scores alone, three rollouts
    (
        [0.0] * 3,
        [scored(1, t0=1.0), scored(1, t0=0.0), scored(1, t0=-1.0)],
        [[1 / ((2 / 3) ** 0.5 + 1e-6)], [0.0], [-1 / ((2 / 3) ** 0.5 + 1e-6)]],
    ),
]


@pytest.mark.parametrize(("rewards", "turns", "expected"), WORKED)
def test_rewards_of_turns_as_written_out(
    rewards: list[float | None],
    turns: list[list[TurnPlace]],
    expected: list[list[float] | None],
) -> None:
    answer = advantages_of_turns(rewards, turns, TrainerConfig(advantage="step_wise"))
    for mine, theirs in zip(answer, expected, strict=True):
        assert mine == (None if theirs is None else pytest.approx(theirs, abs=1e-9))


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
    # rewards are a call's, wherever it stands
    places = turn_places("r", TREE, rewards=TurnRewards(1.0, {3: 0.5, 0: None}))
    assert {call: place.reward for call, place in places.items()} == {
        **dict.fromkeys((1, 2, 4), 0.0),
        **{3: 0.5, 0: None},
    }


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
