"""The configuration of a retrain: what it may set, and which changes of its parent count in it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring.algorithms.gap import GapMode
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import FieldChange, at_step, differences
from mainspring.config.files.layers import assignments
from mainspring.config.files.retrains import inherited, retrained
from mainspring.errors import ConfigError, UsageError
from mainspring.rewards import scoring

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def campaign(**fields: Any) -> CampaignConfig:
    raw = {"name": "c", "trainer": {"device": "cpu", "warm_start": {}, "num_steps": 6}}
    return CampaignConfig.model_validate(raw | fields)


def change(number: int, field: str, after: Any, from_step: int) -> FieldChange:
    return FieldChange(number, field, None, after, from_step, "someone", WHEN)


def again(*values: str, **fields: Any) -> CampaignConfig:
    return retrained(campaign(**fields), "again", assignments(values))


async def asks(outcome: scoring.Outcome, judges: scoring.RewardJudges) -> float:
    return await judges.ask("j", "how good?") or 0.0


def plain(outcome: scoring.Outcome) -> float:
    return float(outcome.num_turns)


def test_it_differs_in_what_is_given_and_measures_the_gap_alone() -> None:
    config = again("trainer.loss=cispo", "trainer.optimizer.weight_decay=0.1")
    assert (config.name, config.trainer.loss) == ("again", "cispo")
    assert config.trainer.optimizer.weight_decay == 0.1
    assert config.trainer.gap.mode is GapMode.WARN
    assert set(differences(campaign(), config)) == {
        *("name", "trainer.loss", "trainer.optimizer.weight_decay", "trainer.gap.mode")
    }
    assert again("trainer.gap.mode=enforce").trainer.gap.mode is GapMode.ENFORCE


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("tasks.num_train=9", "the stored batches follow from it"),
        ("agent.step_limit=3", "the stored batches follow from it"),
        ("agents.other.kind=bash", "the stored batches follow from it"),
        ("policy.sampling.top_p=0.5", "the stored batches follow from it"),
        ("policy.model=/models/other", "the stored batches follow from it"),
        ("trainer.group_size=4", "the stored batches follow from it"),
        ("trainer.filter=none", "the stored batches follow from it"),
        ("seed=7", "the initial weights are made for it"),
        ("trainer.engine=mcore", "the initial weights are made for it"),
        ("trainer.optimizer.name=muon", "the initial weights are made for it"),
        ("trainer.num_steps=9", "--steps gives"),
        ("evaluation.every_steps=2", "nothing is evaluated"),
        ("name=other", "--as"),
    ],
)
def test_the_batches_and_the_first_weights_stay(value: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"cannot set {value.partition('=')[0]} .*{reason}"):
        again(value)


def test_a_whole_section_hides_nothing() -> None:
    with pytest.raises(UsageError, match=r"cannot set trainer\.optimizer\.name"):
        again("trainer.optimizer={name='muon', lr=1e-5}")


def test_without_a_warm_start_another_optimizer_may_move_the_weights() -> None:
    raw = {"trainer": {"device": "cpu"}, "policy": {"model": "/models/own"}}
    assert again("trainer.optimizer.name=muon", **raw).trainer.optimizer.name == "muon"


def test_values_that_no_campaign_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean loss"):
        again("trainer.losss=cispo")


def test_a_reward_is_computed_from_what_is_stored() -> None:
    own = "tests.mainspring.config.test_retrains"
    config = again(f"reward.parts=[{{name='{own}:plain'}}, {{name='format', weight=0.5}}]")
    assert [part.weight for part in config.reward.parts] == [1.0, 0.5]
    with pytest.raises(UsageError, match="asks judges or awaits"):
        again(f"reward.parts=[{{name='{own}:asks'}}]")
    judged = {
        "judges": {"j": {"url": "http://judge:1", "model": "m"}},
        "reward": {"parts": [{"name": "judge", "judge": "j", "of": "rollout"}]},
    }
    assert again("reward.parts.0.weight=2", **judged).reward.parts[0].weight == 2.0
    with pytest.raises(UsageError, match=r"reward part judge\.j\.turns: this judge was not asked"):
        again("reward.parts.0.of=turns", **judged)


def test_a_change_counts_from_its_step_unless_the_field_is_given() -> None:
    changes = [
        change(1, "trainer.optimizer.lr", 1e-4, 3),
        change(2, "trainer.loss", "gspo", 2),
        change(3, "trainer.gap.mode", "enforce", 2),
    ]
    values = assignments(["trainer.loss=cispo"])
    config, kept = retrained(campaign(), "again", values), inherited(changes, values)
    assert [each.number for each in kept] == [1]
    losses = [at_step(config, kept, step).trainer.loss for step in (1, 2, 3)]
    assert losses == ["cispo"] * 3
    rates = [at_step(config, kept, step).trainer.optimizer.lr for step in (2, 3)]
    assert rates == [campaign().trainer.optimizer.lr, 1e-4]
    assert inherited(changes, assignments(["trainer.optimizer={lr=1e-5}"])) == changes[1:2]
