"""Runs that an earlier version stored: the same command resumes them, and nothing of them changes.

The rows are that version's own dumps (tests/mainspring/config/stored).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tables.models import CampaignRow
from mainspring.config.any_run import with_concurrency
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.files.stored import read_stored
from mainspring.config.tracking import TrackingConfig
from mainspring.errors import ConfigError, DatabaseError, UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus
from mainspring.status.fates import Fate, rule_of

FOLDER = Path(__file__).parents[2] / "mainspring" / "config" / "stored"
STORED = sorted(file.stem for file in FOLDER.glob("*.json"))
TRAIN_DIGEST = "26255b42e66dac5ad4601cd9a71a00c8f4f976c8b49894aa9593d1b46df0c44e"
"""As the earlier version computed it; checkpoints name it."""


def kind_of(name: str) -> CampaignKind:
    return CampaignKind(name.partition("-")[0])


async def put(db: Database, name: str, **changes: object) -> dict[str, Any]:
    raw = json.loads((FOLDER / f"{name}.json").read_text()) | changes
    row = {"id": raw["name"], "kind": kind_of(name), "config": raw}
    async with db.transaction() as connection:
        await connection.execute(
            insert(CampaignRow).values(row | {"status": CampaignStatus.RUNNING})
        )
    return raw


async def raw_of(db: Database, campaign: str) -> dict[str, Any]:
    async with db.transaction() as connection:
        query = select(CampaignRow.config).where(CampaignRow.id == campaign)
        return (await connection.execute(query)).scalar_one()


@pytest.mark.parametrize("name", STORED)
async def test_the_same_command_resumes_it(db: Database, name: str) -> None:
    raw = await put(db, name)
    given = read_stored(kind_of(name), raw)
    assert not await campaigns.create(db, given)
    assert await raw_of(db, given.name) == raw

    # Only how many run at once may change, and it changes where the row has it.
    assert not await campaigns.create(db, with_concurrency(given, 7))
    assert (await campaigns.get(db, CampaignId(given.name))).config == with_concurrency(given, 7)
    raw["evaluation"]["concurrency"] = 7
    assert await raw_of(db, given.name) == raw
    with pytest.raises(UsageError, match=r"agent\.step_limit: \d+ -> 99"):
        agent = given.agent.model_copy(update={"step_limit": 99})
        await campaigns.create(db, given.model_copy(update={"agent": agent}))


async def test_the_digest_of_a_campaign_stays(db: Database) -> None:
    raw = await put(db, "train")
    assert (await campaigns.get(db, CampaignId("old-train"))).config_digest == TRAIN_DIGEST
    given = read_stored(CampaignKind.TRAIN, raw)
    await campaigns.create(db, with_concurrency(given, 5))
    assert (await campaigns.get(db, CampaignId("old-train"))).config_digest == TRAIN_DIGEST


async def test_a_campaign_may_get_another_tracker(db: Database) -> None:
    await put(db, "train")
    campaign = CampaignId("old-train")
    given = (await campaigns.get(db, campaign)).config
    for sections in ({"wandb": {}}, {"mlflow": {"uri": "http://host"}}, {}):
        tracking = TrackingConfig.model_validate(sections)
        told = given.model_copy(update={"tracking": tracking})
        assert not await campaigns.create(db, told)
        stored = await campaigns.get(db, campaign)
        assert stored.config == told and stored.config_digest == TRAIN_DIGEST


async def test_another_slice_is_refused_by_name_and_so_is_another_kind(db: Database) -> None:
    given = read_stored(CampaignKind.EVAL, await put(db, "eval"))
    assert isinstance(given, EvaluationConfig)
    with pytest.raises(UsageError, match="slice: '0:5' -> '0:6'"):
        await campaigns.create(db, given.model_copy(update={"slice": "0:6"}))
    train = read_stored(CampaignKind.TRAIN, json.loads((FOLDER / "train.json").read_text()))
    with pytest.raises(UsageError, match="its kind is eval, not train"):
        await campaigns.create(db, train.model_copy(update={"name": given.name}))


async def test_what_this_version_stores_can_be_told_to_run_faster(db: Database) -> None:
    given = read_stored(CampaignKind.EVAL, json.loads((FOLDER / "eval.json").read_text()))
    assert await campaigns.create(db, given)
    assert not await campaigns.create(db, with_concurrency(given, 3))
    stored = await raw_of(db, given.name)
    assert stored["concurrency"] == 3 and "evaluation" not in stored and "kind" not in stored


async def test_a_campaign_of_a_newer_version_is_named_and_waits_for_its_processes(
    db: Database,
) -> None:
    """It does not end because a process of the version before reads it."""
    await put(db, "eval", agent={"step_limit": 30, "from_the_future": 1})
    with pytest.raises(DatabaseError, match=r"another version: agent\.from_the_future: ") as told:
        await campaigns.get(db, CampaignId("old-eval"))
    assert rule_of(told.value.fault).fate is Fate.RETRY


async def test_a_field_that_no_version_can_use_ends_the_campaign(db: Database) -> None:
    await put(db, "eval", agent={"step_limit": "many"})
    with pytest.raises(ConfigError, match=r"another version: agent\.step_limit: ") as told:
        await campaigns.get(db, CampaignId("old-eval"))
    assert rule_of(told.value.fault).fate is Fate.END
