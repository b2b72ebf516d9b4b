"""Configurations of every kind, as the version before the union of runs stored them, are read.

The files in `stored` are that version's own dumps, when each kind had every section.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mainspring.config.any_run import AnyRun, read_run
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.files.stored import read_stored
from mainspring.status import CampaignKind, Player

STORED = sorted((Path(__file__).parent / "stored").glob("*.json"))


def dump(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "stored" / f"{name}.json").read_text())


def read(name: str) -> AnyRun:
    return read_stored(CampaignKind(name.partition("-")[0]), dump(name))


def part_of(value: object, like: object) -> object:
    """`value` without the fields that `like` lacks: those that were added since."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {key: part_of(value[key], like[key]) for key in like}
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [part_of(*each) for each in zip(value, like, strict=True)]
    return value


def test_a_campaign_keeps_all_but_the_section_that_it_did_not_use() -> None:
    config = read("train")
    assert isinstance(config, CampaignConfig)
    assert config.evaluation.splits == ("dev", "test") and config.evaluation.concurrency == 48
    before = dump("train")
    del before["run"]
    assert before["trainer"].pop("normalize_std") is True  # `std` since, whose default it is
    now = config.model_dump(mode="json")
    assert part_of(now, before) == before
    # Fields that were added since have the defaults of a new campaign.
    new = CampaignConfig(name="a", policy={"model": "/models/m"}).model_dump(mode="json")
    for section, fields in now.items():
        if isinstance(fields, dict):
            for key in fields.keys() - before.get(section, {}).keys():
                # Before engines were chosen by device there was one.
                expected = "plain" if (section, key) == ("trainer", "engine") else new[section][key]
                assert fields[key] == expected, (section, key)


def test_an_evaluation_keeps_what_it_measures() -> None:
    config = read("eval")
    assert isinstance(config, EvaluationConfig)
    assert (config.split, config.bounds, config.samples) == ("dev", (0, 5), 4)
    assert (config.concurrency, config.seed, config.agent.step_limit) == (12, 7, 30)


def test_a_verification_keeps_whose_patches_it_grades() -> None:
    config, attack = read("verify"), read("verify-exploits")
    assert isinstance(config, VerificationConfig) and isinstance(attack, VerificationConfig)
    assert config.players == (Player.GOLD, Player.EMPTY) and config.bounds == (3, None)
    assert (config.samples, config.concurrency, config.split) == (2, 64, "dev")
    assert attack.players == (Player.EXPLOIT,) and len(attack.exploits) == 2


@pytest.mark.parametrize(
    ("name", "of", "split", "concurrency"),
    [
        ("regrade-of-eval", "old-eval", "dev", 12),
        ("regrade-of-train", "old-train", "test", 48),
    ],
)
def test_a_regrade_keeps_its_source(name: str, of: str, split: str, concurrency: int) -> None:
    config = read(name)
    assert isinstance(config, RegradeConfig)
    assert (config.of, config.split, config.concurrency) == (of, split, concurrency)
    assert config.policy.model == "/models/m"


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_what_this_version_stores_of_it_is_read_as_the_same(file: Path) -> None:
    config = read(file.stem)
    now = config.model_dump(mode="json")
    assert "kind" not in now and "run" not in now
    assert read_stored(config.kind, now) == config == read_run(config.kind, now)


def test_a_section_of_no_version_is_refused() -> None:
    with pytest.raises(ValidationError, match="players"):
        read_run(CampaignKind.EVAL, read("eval").model_dump() | {"players": ["gold"]})
    with pytest.raises(ValidationError, match="from_the_future"):
        read_stored(CampaignKind.EVAL, dump("eval") | {"from_the_future": 1})
