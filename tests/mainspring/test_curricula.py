"""Which task the next training group gets."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mainspring.config.campaign import CampaignConfig
from mainspring.curricula.choice import CURRICULA, next_task
from mainspring.curricula.protocol import TaskHistory
from mainspring.training.training_faults import AlgorithmBroken

NUM_DRAWS = 2000


def campaign(kind: str, **fields: Any) -> CampaignConfig:
    curriculum = {"kind": kind, **fields}
    return CampaignConfig.model_validate(
        {"name": "c", "curriculum": curriculum, "policy": {"model": "/m"}}
    )


def shares(tasks: list[TaskHistory], config: CampaignConfig) -> list[float]:
    counts = Counter(next_task(tasks, draw, config) for draw in range(NUM_DRAWS))
    return [counts[n] / NUM_DRAWS for n in range(len(tasks))]


def test_a_band_takes_tasks_that_are_solved_sometimes() -> None:
    tasks = [TaskHistory(8, solved) for solved in (0, 4, 8)] + [TaskHistory()]
    never, sometimes, always, new = shares(tasks, campaign("band", outside=0.1))
    assert sometimes == pytest.approx(1 / 2.2, abs=0.04) and new == pytest.approx(1 / 2.2, abs=0.04)
    assert never == pytest.approx(0.1 / 2.2, abs=0.02)
    assert always == pytest.approx(0.1 / 2.2, abs=0.02)
    assert shares(tasks, campaign("band", outside=0.0))[0] == 0.0


def test_prioritized_takes_tasks_by_how_often_they_fail() -> None:
    tasks = [TaskHistory(4, solved) for solved in (0, 2, 4)]
    failing, half, solved = shares(tasks, campaign("prioritized", outside=0.1))
    assert failing == pytest.approx(1 / 1.6, abs=0.04)
    assert half == pytest.approx(0.5 / 1.6, abs=0.04)
    assert solved == pytest.approx(0.1 / 1.6, abs=0.03)


@given(
    kind=st.sampled_from(sorted(CURRICULA)),
    numbers=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)), min_size=1
    ),
    draw=st.integers(0, 10**6),
)
def test_a_task_in_flight_waits_unless_all_are(kind, numbers, draw) -> None:
    tasks = [TaskHistory(scored, min(scored, solved), run) for scored, solved, run in numbers]
    config = campaign(kind)
    found = next_task(tasks, draw, config)
    assert found == next_task(tasks, draw, config)
    assert not tasks[found].num_running or all(task.num_running for task in tasks)


def test_a_band_wastes_fewer_groups_than_every_task_in_turn() -> None:
    """40 % of the tasks are never solved and 20 % always: their groups teach nothing."""
    rates = [0.0] * 16 + [1.0] * 8 + [0.5] * 16

    def num_flat(config: CampaignConfig | None) -> int:
        rng = random.Random(0)
        tasks = [TaskHistory() for _ in rates]
        flat = 0
        for draw in range(200):
            n = draw % len(rates) if config is None else next_task(tasks, draw, config)
            solved = sum(rng.random() < rates[n] for _ in range(8))
            flat += solved in (0, 8)
            tasks[n] = TaskHistory(8, solved)
        return flat

    in_turn, band = num_flat(None), num_flat(campaign("band"))
    assert in_turn >= 120 and band <= 50


def first(tasks, draw, campaign):
    return 0


def beyond(tasks, draw, campaign):
    return len(tasks)


def broken(tasks, draw, campaign):
    raise KeyError("difficulty")


def test_one_of_your_own_is_asked_and_checked() -> None:
    tasks = [TaskHistory(), TaskHistory()]
    own = campaign(f"{__name__}:first")
    CURRICULA.check(own.curriculum.kind)
    assert next_task(tasks, 7, own) == 0
    with pytest.raises(AlgorithmBroken, match="returned 2, expected a position from 0 to 1"):
        next_task(tasks, 0, campaign(f"{__name__}:beyond"))
    with pytest.raises(AlgorithmBroken, match="raised KeyError: 'difficulty'"):
        next_task(tasks, 0, campaign(f"{__name__}:broken"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"low": 0.9, "high": 0.1}, "low = 0.9 is more than high = 0.1"),
        ({"min_pass_rate": 0.1}, "need pass_rates_of"),
        ({"pass_rates_of": "e", "min_pass_rate": 0.6, "max_pass_rate": 0.5}, "is more than"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        campaign("band", **fields)


def test_a_reproducible_campaign_takes_its_tasks_in_turn() -> None:
    """A solve rate so far depends on which groups have ended: on time."""
    raw = campaign("band").model_dump(exclude_unset=True)
    raw |= {"schedule": "reproducible", "trainer": {"device": "cpu"}}
    with pytest.raises(ValidationError, match=r"curriculum\.kind = \"shuffled\""):
        CampaignConfig.model_validate(raw)
