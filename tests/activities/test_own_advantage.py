"""The example advantage makes a step's batch: named by its path, through the real code."""

import sys
from pathlib import Path

import pytest
from test_step_batch import group, rollout

from activities.training.step_batch import step_batch
from mainspring.algorithms.choice import check_algorithms
from mainspring.config.files.reading import load_campaign
from mainspring.config.trainer import TrainerConfig
from mainspring.training.training_faults import AlgorithmBroken

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-advantage"
GROUP = group(rollout(0, 1.0, 1), rollout(1, 0.0, 1), rollout(2, None, 1), rollout(3, 0.5, 1, 1))


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield load_campaign(EXAMPLE / "campaign.toml").trainer
    sys.modules.pop("leave_one_out", None)


def test_the_example_advantage_makes_a_batch(trainer: TrainerConfig) -> None:
    check_algorithms(trainer)
    batch = step_batch([GROUP], trainer, version=1)
    assert [each.rollout for each in batch.samples] == ["c/g0/0", "c/g0/1", "c/g0/3"]
    # against the mean of the two others: 0.25, 0.75 and 0.5
    assert [each.advantages[-1] for each in batch.samples] == [0.75, -0.75, 0.0]
    assert batch.digest != step_batch([GROUP], TrainerConfig(), version=1).digest


def too_few(rewards_G, trainer):
    return [0.0]


def scores_the_masked(rewards_G, trainer):
    return [reward or 0.0 for reward in rewards_G]


def no_number(rewards_G, trainer):
    return [None if reward is None else float("nan") for reward in rewards_G]


def fails(rewards_G, trainer):
    raise KeyError("reward")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("too_few", r"returned \[0.0\] for 4 rewards"),
        ("scores_the_masked", "returned 0.0 for the reward None"),
        ("no_number", "returned nan, expected a finite number"),
        ("fails", "raised KeyError: 'reward'"),
    ],
)
def test_what_is_no_advantage_is_never_trained_on(function: str, problem: str) -> None:
    trainer = TrainerConfig(advantage=f"{__name__}:{function}")
    check_algorithms(trainer)
    with pytest.raises(AlgorithmBroken, match=f"trainer.advantage '.*' {problem}") as broken:
        step_batch([GROUP], trainer, version=1)
    assert "start the campaign again" in broken.value.remedy
