"""The pure decisions of a campaign: admission, curriculum, advantages, contiguity."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.algorithms.admission import num_admissible_groups
from mainspring.algorithms.choice import advantages_of
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.algorithm import Std
from mainspring.curricula.shuffled import task_position
from mainspring.trajectories.samples import NOT_SAMPLED, samples_of
from mainspring.trajectories.turns import BrokenTrajectory, Call, VersionSpan


@given(
    num_steps=st.integers(1, 20),
    groups_per_step=st.integers(1, 8),
    max_staleness=st.integers(0, 3),
    events=st.lists(st.sampled_from(["done", "step"]), max_size=200),
)
def test_admission_keeps_the_bound_and_always_finishes(
    num_steps: int, groups_per_step: int, max_staleness: int, events: list[str]
) -> None:
    steps_done = in_flight = ready = 0

    def admit() -> None:
        nonlocal in_flight
        in_flight += num_admissible_groups(
            num_steps=num_steps,
            steps_done=steps_done,
            groups_per_step=groups_per_step,
            max_staleness=max_staleness,
            in_flight=in_flight,
            ready=ready,
        )
        assert in_flight + ready <= (max_staleness + 1) * groups_per_step
        # Enough is always under way or ready for the next step.
        assert steps_done == num_steps or in_flight + ready >= groups_per_step

    admit()
    for event in events:
        if event == "done" and in_flight:
            in_flight, ready = in_flight - 1, ready + 1
        elif event == "step" and ready >= groups_per_step and steps_done < num_steps:
            ready, steps_done = ready - groups_per_step, steps_done + 1
        admit()


def test_every_pass_over_the_tasks_is_a_permutation() -> None:
    for epoch in range(3):
        seen = Counter(task_position(7, epoch * 10 + n, 10) for n in range(10))
        assert seen == Counter(range(10))
    orders = {tuple(task_position(7, e * 10 + n, 10) for n in range(10)) for e in range(3)}
    assert len(orders) == 3


def test_masked_rollouts_do_not_move_the_baseline() -> None:
    assert advantages_of([1.0, 0.0, None], TrainerConfig(std=Std.NONE)) == [0.5, -0.5, None]
    assert advantages_of([1.0, 1.0, None], TrainerConfig()) == [0.0, 0.0, None]
    assert advantages_of([None, None], TrainerConfig()) == [None, None]
    low, high = advantages_of([0.0, 1.0], TrainerConfig())
    assert low == pytest.approx(-1, abs=1e-3) and high == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    "rewards_G", [[0.1] * 3, [0.7] * 8, [0.55, None] * 16, [0.1 + 0.2, 0.3], [0.4]]
)
@pytest.mark.parametrize("std", list(Std))
def test_equal_rewards_give_exact_zeros(rewards_G, std) -> None:
    expected = [None if reward is None else 0.0 for reward in rewards_G]
    assert advantages_of(rewards_G, TrainerConfig(std=std)) == expected


def turn(number: int, start: int, spans: tuple[VersionSpan, ...] = (VersionSpan(3, 0, 2),)):
    parent = number - 1 if number else None
    return Call(number, parent, start, (7, 8, 9), (1, 2), (-0.1, -0.2), spans, "x", "stop")


def test_a_sample_is_the_sequence_as_served() -> None:
    mixed = (VersionSpan(3, 0, 1), VersionSpan(4, 1, 2))
    [sample] = samples_of("r", [turn(0, 0), turn(1, 5, mixed)])
    assert sample.token_ids.tolist() == [7, 8, 9, 1, 2] * 2
    assert sample.action_mask.tolist() == [False, False, False, True, True] * 2
    none = NOT_SAMPLED
    assert sample.versions.tolist() == [none, none, none, 3, 3, none, none, none, 3, 4]
    assert sample.num_action_tokens == 4


@pytest.mark.parametrize(
    "broken",
    [
        [turn(1, 0)],
        [turn(0, 0), turn(1, 6)],
        [turn(0, 0, (VersionSpan(3, 0, 1),))],
        [turn(0, 0, (VersionSpan(3, 1, 2),))],
        [replace(turn(0, 0), logprobs=(-0.1,))],
    ],
)
def test_what_does_not_line_up_is_never_a_sample(broken: list[Call]) -> None:
    with pytest.raises(BrokenTrajectory, match="rollout r, call"):
        samples_of("r", broken)
