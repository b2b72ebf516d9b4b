"""A fork's steps are counted with those of its parent, on all screens."""

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.operations.runs.watch import Moves, RunWatch
from infra.db.database import Database
from infra.db.runs import campaigns, forks
from infra.db.runs.campaign_record import Parent
from infra.db.runs.forks import ForkedVersion
from infra.db.training import steps
from mainspring.ids import CampaignId
from tests.infra.db.store_records import CAMPAIGN, add_ready_group, begin_campaign, config
from tests.view.viewed import home_of, viewer_of

FORK = CampaignId("forked")
FORKED_AT, LAST = 2, 5


@pytest.fixture
async def forked(db: Database) -> None:
    """A campaign with two steps, and a fork of its newest version."""
    await begin_campaign(db)
    for number in range(1, FORKED_AT + 1):
        await step(db, CAMPAIGN, number)
    await forks.add(
        db,
        config(FORK, num_steps=LAST),
        str(uuid.uuid4()),
        await campaigns.get(db, CAMPAIGN),
        Parent(CAMPAIGN, FORKED_AT, FORKED_AT + 1),
        [ForkedVersion(number, f"/fork/v{number}", None) for number in (0, FORKED_AT)],
        (),
    )


async def step(db: Database, campaign: CampaignId, number: int) -> None:
    await add_ready_group(db, number, campaign)
    await steps.plan_step(db, campaign, number, 1)
    await steps.commit_step(
        db,
        campaign,
        number,
        metrics={"reward_mean": 0.5},
        policy_path=f"/{campaign}/v{number}",
        checkpoint=None,
    )


async def listed(home: Path) -> list[int]:
    """Steps of the fork: those that are done, and all."""
    arguments = ["campaign", "list", "--json", "--home", str(home)]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, result.output
    [row] = [each for each in json.loads(result.stdout) if each["name"] == FORK]
    return [row["num_steps_done"], row["num_steps"]]


async def watched(db: Database) -> list[int | None]:
    shown = await RunWatch(db, None, FORK, "")._training(await campaigns.get(db, FORK))  # type: ignore[arg-type]
    return [shown.num_done, shown.total]


@pytest.mark.usefixtures("forked")
async def test_screens_count_a_forks_steps_with_its_parents(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_moves(*_: object) -> Moves:
        return Moves()

    monkeypatch.setattr(RunWatch, "_look", nothing_moves)
    home = home_of(tmp_path, store_url)
    for done in (FORKED_AT, FORKED_AT + 1, FORKED_AT + 2):
        if done > FORKED_AT:
            await step(db, FORK, done)
        assert await listed(home) == await watched(db) == [done, LAST]
        async with viewer_of(home) as client:
            front = (await client.get("/home.json")).json()
            [line] = [run for run in front["runs"] if run["id"] == FORK]
            assert (line["num_steps_done"], line["num_steps"]) == (done, LAST)
            assert f"step {done} of {LAST}" in (await client.get(f"/c/{FORK}")).text
    async with viewer_of(home) as client:
        first = (await client.get(f"/c/{FORK}/steps/{FORKED_AT + 1}")).text
        assert 'rel="prev"' not in first, "the step before is the parent's"
        assert 'rel="next"' in first
        last = (await client.get(f"/c/{FORK}/steps/{FORKED_AT + 2}")).text
        assert 'rel="prev"' in last and 'rel="next"' not in last
