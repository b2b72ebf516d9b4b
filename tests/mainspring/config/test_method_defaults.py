"""Defaults that depend on a method: filled where the file has none, and nowhere else."""

from typing import Any

import pytest

from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import STORED
from mainspring.config.sft import SftFile
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.method_defaults import LORA_LR, SUPERVISED_LORA_LR, as_stored, notes


def campaign(context: Any = None, **trainer: Any) -> CampaignConfig:
    raw = {"name": "x", "policy": {"model": "/models/m"}, "trainer": trainer}
    return CampaignConfig.model_validate(raw, context=context)


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        (
            {"loss": "gspo"},
            {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "seq_mean_token_mean"},
        ),
        ({"loss": "gspo", "clip_high": 1e-3}, {"clip_low": 3e-4, "clip_high": 1e-3}),
        ({"loss": "clip"}, {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"}),
        ({"advantage": "reinforce_plus_plus"}, {"filter": "none"}),
        ({"advantage": "reinforce_plus_plus", "filter": "mixed"}, {"filter": "mixed"}),
        ({"advantage": "raft"}, {"filter": "solved"}),
        ({"advantage": "gae", "critic": {}}, {"filter": "none"}),
        ({"advantage": "grpo"}, {"filter": "mixed"}),
    ],
    ids=str,
)
def test_a_field_that_is_not_set_has_the_default_of_its_method(
    trainer: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = campaign(**trainer).trainer
    assert {name: getattr(found, name) for name in expected} == expected
    alone = TrainerConfig(**trainer)
    assert {name: getattr(alone, name) for name in expected} == expected


def test_nested_fields_and_sections_that_were_made_before() -> None:
    assert campaign(kl={"where": "reward", "coef": 1}).trainer.kl.estimator == "k1"
    assert campaign(kl={"coef": 1}).trainer.kl.estimator == "k3"
    assert campaign(kl={"where": "reward", "estimator": "k2"}).trainer.kl.estimator == "k2"
    assert campaign(lora={"rank": 4}).trainer.optimizer.lr == LORA_LR
    assert campaign(lora={"rank": 4}, optimizer={"eps": 1e-6}).trainer.optimizer.lr == LORA_LR
    assert campaign(lora={"rank": 4}, optimizer={"lr": 2e-6}).trainer.optimizer.lr == 2e-6
    assert campaign(lora={"rank": 0}).trainer.optimizer.lr == 1e-6
    raw = {"name": "x", "policy": {"model": "/m"}, "data": {"sources": [{"file": "a.jsonl"}]}}
    with_adapters = SftFile.model_validate(raw | {"trainer": {"lora": {"rank": 4}}})
    assert with_adapters.trainer.optimizer.lr == SUPERVISED_LORA_LR
    assert SftFile.model_validate(raw).trainer.optimizer.lr == 1e-5
    assert with_adapters.config().ranks.trainer.optimizer.lr == SUPERVISED_LORA_LR


def test_a_plan_tells_which_values_stand_for_a_method() -> None:
    found = notes(campaign(loss="gspo", lora={"rank": 4}).trainer)
    assert 'trainer.clip_low = 0.0003, as loss = "gspo" has it' in found
    assert "trainer.optimizer.lr = 1e-05, as adapters have it" in found
    assert notes(campaign().trainer) == []
    assert len(notes(campaign(loss="gspo", clip_low=0.1).trainer)) == 2


def test_a_stored_campaign_keeps_what_it_was_stored_with() -> None:
    """Before methods had defaults: the same file still names that campaign."""
    trainer = {"loss": "gspo", "lora": {"rank": 4}, "kl": {"coef": 1, "where": "reward"}}
    before = campaign(STORED, **trainer).trainer
    assert (before.clip_low, before.optimizer.lr, before.kl.estimator) == (0.2, 1e-6, "k3")
    given = campaign(**trainer).trainer
    assert given != before
    assert as_stored(given, before) == before
    assert as_stored(given, given) == given
    # What the file sets is another campaign.
    other = campaign(**(trainer | {"clip_low": 1e-3})).trainer
    assert as_stored(other, before).clip_low == 1e-3
