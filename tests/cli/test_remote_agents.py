"""What the command line does for agents outside: keys, and tasks that they may not see."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.campaign import campaign
from cli.operations.checks.task_checks import check_tasks
from infra.db.database import Database
from infra.db.programs import campaign_keys
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.own_task import OwnTask
from tests.infra.db.store_records import config, task

REMOTE = AgentConfig(kind="remote")
REWARDED = AgentConfig(kind="remote", options={"rewards": True})


@pytest.fixture
async def store(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    await campaigns.create(db, config("outside").model_copy(update={"agent": REMOTE}))
    await campaigns.create(db, config("inside"))
    return db


async def run(*arguments: str) -> tuple[str, BaseException | None]:
    app = typer.Typer()
    app.add_typer(campaign.app)
    result = await asyncio.to_thread(CliRunner().invoke, app, ["campaign", *arguments])
    return result.stdout, result.exception


async def test_a_key_is_shown_once_and_can_be_revoked(store: Database) -> None:
    told, _ = await run("key", "outside", "--json")
    made = json.loads(told)
    assert await campaign_keys.campaign_of(store, made["key"]) == CampaignId("outside")
    _, error = await run("key", "outside")
    assert isinstance(error, UsageError)
    assert "shown once" in error.message and "--revoke" in error.remedy
    told, _ = await run("key", "outside", "--revoke")
    assert told == "the key of outside is revoked\n"
    assert await campaign_keys.campaign_of(store, made["key"]) is None
    _, error = await run("key", "outside", "--revoke")
    assert isinstance(error, UsageError) and "no key" in error.message
    told, _ = await run("key", "outside")
    assert told.startswith("msc_") and told.strip() != made["key"]


async def test_runs_whose_agent_is_not_outside_have_no_key(store: Database) -> None:
    _, error = await run("key", "inside")
    assert isinstance(error, UsageError) and 'agent.kind = "remote"' in error.remedy
    _, error = await run("key", "outsid")
    assert isinstance(error, UsageError) and "outside" in error.remedy


def own(name: str) -> OwnTask:
    return OwnTask(
        id=TaskId(name),
        source="made-up",
        split="train",
        issue="Guess.",
        kind="guess",
        data={"n": 7},
    )


@pytest.mark.parametrize(
    ("agent", "given", "wrong"),
    [
        (REMOTE, task(0), None),
        (REWARDED, task(0), None),
        (REMOTE, own("o"), "has no patch"),
        (REWARDED, own("o"), None),
        (
            REMOTE,
            task(0).model_copy(update={"image": "i", "files": {}, "base_patch": "diff"}),
            "base_patch",
        ),
        (
            REWARDED,
            task(0).model_copy(update={"image": "i", "files": {}, "hidden_files": ("t",)}),
            "hidden_files",
        ),
    ],
)
async def test_tasks_that_an_agent_outside_cannot_play_are_refused(
    db: Database, agent: AgentConfig, given: AnyTask, wrong: str | None
) -> None:
    await tasks.put_tasks(db, [given])
    asked = config("outside").model_copy(update={"agent": agent})
    if wrong is None:
        await check_tasks(db, asked, [given.id])
        return
    with pytest.raises(UsageError, match=wrong) as refused:
        await check_tasks(db, asked, [given.id])
    assert given.id in refused.value.message and refused.value.remedy
