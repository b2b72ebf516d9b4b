"""Each advantage estimator: its formula, and what none of them may do."""

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.algorithms.advantages.protocol import BatchEstimator
from mainspring.algorithms.choice import (
    ADVANTAGES,
    advantages_of,
    advantages_of_batch,
    check_algorithms,
    is_usable,
)
from mainspring.algorithms.equal_rewards import is_flat
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Std
from mainspring.errors import ConfigError
from mainspring.training.training_faults import AlgorithmBroken

UNHURRIED = settings(deadline=None)
"""The machine may be busy with other tests."""
Rewards = list[float | None]
ESTIMATORS = [
    *(TrainerConfig(advantage=name) for name in ADVANTAGES if name not in ("raft", "gae")),
    *(TrainerConfig(std=std) for std in (Std.UNBIASED, Std.NONE)),
]
RAFT = TrainerConfig(advantage="raft", keep_reward=0.5)
"""Compares a rollout with no other, so equal rewards are no zeros."""
OF_GROUPS = [each for each in ESTIMATORS if each.advantage != "reinforce_plus_plus"]
"""Those that compare a rollout with its group at first."""
rewards = st.one_of(st.none(), st.floats(-2, 2).map(lambda x: round(x, 3)))
groups = st.lists(rewards, min_size=2, max_size=6)
batches = st.lists(groups, min_size=1, max_size=4)


def name_of(trainer: TrainerConfig) -> str:
    return f"{trainer.advantage}-{trainer.std}"


def scored(batch: Sequence[Sequence[float | None]]) -> list[float]:
    return [each for group in batch for each in group if each is not None]


@pytest.mark.parametrize("trainer", ESTIMATORS, ids=name_of)
@UNHURRIED
@given(reward=st.floats(-3, 3), shape=st.lists(st.lists(st.booleans(), min_size=1, max_size=5)))
def test_a_batch_of_equal_rewards_gives_exact_zeros(
    trainer: TrainerConfig, reward: float, shape: list[list[bool]]
) -> None:
    batch: list[Rewards] = [[reward if each else None for each in group] for group in shape]
    expected = [[0.0 if each else None for each in group] for group in shape]
    assert advantages_of_batch(batch, trainer) == expected


@pytest.mark.parametrize("trainer", OF_GROUPS, ids=name_of)
@UNHURRIED
@given(batch=batches, reward=st.floats(-3, 3))
def test_a_group_of_equal_rewards_gives_exact_zeros_beside_others(
    trainer: TrainerConfig, batch: list[Rewards], reward: float
) -> None:
    flat = advantages_of_batch([*batch, [reward, None, reward]], trainer)[-1]
    assert flat == [0.0, None, 0.0]


@UNHURRIED
@given(batch=batches)
def test_raft_keeps_what_is_good_enough_and_discards_the_rest(batch: list[Rewards]) -> None:
    kept = [
        [None if each is None else 1.0 if each >= 0.5 else 0.0 for each in group] for group in batch
    ]
    assert advantages_of_batch(batch, RAFT) == kept
    found = [is_usable(group, RAFT.model_copy(update={"filter": "solved"})) for group in batch]
    assert found == [1.0 in group for group in kept]


@pytest.mark.parametrize("trainer", [*ESTIMATORS, RAFT], ids=name_of)
@UNHURRIED
@given(batch=batches)
def test_masked_rollouts_move_no_other_and_order_does_not_matter(
    trainer: TrainerConfig, batch: list[Rewards]
) -> None:
    found = advantages_of_batch(batch, trainer)
    for group, advantages in zip(batch, found, strict=True):
        assert [each is None for each in group] == [each is None for each in advantages]
    without = [[each for each in group if each is not None] for group in batch]
    assert scored(advantages_of_batch(without, trainer)) == scored(found)
    backwards = advantages_of_batch([group[::-1] for group in batch[::-1]], trainer)
    assert scored(backwards)[::-1] == pytest.approx(scored(found), abs=1e-6)


@pytest.mark.parametrize("trainer", ESTIMATORS, ids=name_of)
@UNHURRIED
@given(batch=batches)
def test_advantages_are_in_the_order_of_rewards_and_add_up_to_nothing(
    trainer: TrainerConfig, batch: list[Rewards]
) -> None:
    found = advantages_of_batch(batch, trainer)
    assert math.fsum(scored(found)) == pytest.approx(0, abs=1e-6 * (1 + len(scored(found))) ** 2)
    for group, advantages in zip(batch, found, strict=True):
        by_reward = sorted(zip(scored([group]), scored([advantages]), strict=True))
        ordered = [advantage for _, advantage in by_reward]
        assert ordered == pytest.approx(sorted(ordered), abs=1e-9)


@UNHURRIED
@given(group=groups)
def test_estimators_of_a_group_by_hand(group: Rewards) -> None:
    values = scored([group])
    if is_flat(values):
        return
    mean = statistics.fmean(values)
    n = len(values)
    centred = [each - mean for each in values]
    others = [each - (sum(values) - each) / (n - 1) for each in values]
    unbiased, population = statistics.stdev(values) + 1e-6, statistics.pstdev(values) + 1e-4
    for trainer, expected in (
        (TrainerConfig(), [each / population for each in centred]),
        (TrainerConfig(std=Std.UNBIASED), [each / unbiased for each in centred]),
        (TrainerConfig(std=Std.NONE), centred),
        (TrainerConfig(advantage="dr_grpo", std=Std.UNBIASED), centred),
        (TrainerConfig(advantage="rloo"), others),
    ):
        found = scored([advantages_of(group, trainer)])
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert scored(advantages_of_batch([group, [1.0, 0.0]], trainer)[:1]) == found


@UNHURRIED
@given(batch=batches)
def test_reinforce_plus_plus_whitens_the_batch(batch: list[Rewards]) -> None:
    centred: list[Rewards] = []
    for group in batch:
        mean = statistics.fmean(scored([group]) or [0.0])
        centred.append([None if each is None else each - mean for each in group])
    for name, given_ in (("reinforce_plus_plus", batch), ("reinforce_plus_plus_baseline", centred)):
        values = scored(given_)
        if is_flat(values) or statistics.pvariance(values) < 1e-6:
            continue
        mean, std = statistics.fmean(values), (statistics.variance(values) + 1e-8) ** 0.5
        found = scored(advantages_of_batch(batch, TrainerConfig(advantage=name)))
        assert found == pytest.approx([(each - mean) / std for each in values], abs=1e-6)


class Own:
    """Of a batch, as docs/extending.md tells to write one."""

    def __init__(self, found: object) -> None:
        self._found = found

    def __call__(self, rewards_G: Sequence[float | None], trainer: TrainerConfig) -> Rewards:
        return list(rewards_G)

    def over_batch(self, advantages_NG: object, trainer: TrainerConfig) -> object:
        if self._found is None:
            raise KeyError("group")
        return self._found


halved, too_few = Own([[0.5, None], [0.0, 1.0]]), Own([[0.5, None]])
scores_the_masked, no_number = Own([[0.5, 0.5], [0.0, 1.0]]), Own([["a", None], []])
fails = Own(None)


def test_an_estimator_of_your_own_may_compare_groups() -> None:
    trainer = TrainerConfig(advantage=f"{__name__}:halved")
    check_algorithms(trainer)
    assert isinstance(halved, BatchEstimator)
    assert advantages_of_batch([[1.0, None], [0.0, 2.0]], trainer) == [[0.5, None], [0.0, 1.0]]
    with pytest.raises(ConfigError, match="expected a plain function"):
        check_algorithms(TrainerConfig(advantage=f"{__name__}:Own"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("too_few", "for 2 groups"),
        ("no_number", "returned 'a', expected a finite number"),
        ("scores_the_masked", "returned 0.5 for the reward None"),
        ("fails", "raised KeyError: 'group'"),
    ],
)
def test_what_is_no_advantage_of_a_batch_is_refused(name: str, problem: str) -> None:
    trainer = TrainerConfig(advantage=f"{__name__}:{name}")
    with pytest.raises(AlgorithmBroken, match=problem):
        advantages_of_batch([[1.0, None], [0.0, 2.0]], trainer)
