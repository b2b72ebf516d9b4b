"""What a run waits for, on the pages: a warning only where it does not move by itself."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from store_records import CAMPAIGN, begin_campaign
from viewed import home_of, viewer_of

from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs.stored_run import waits_here
from infra.db.database import Database
from infra.db.runs import campaigns
from mainspring.ids import ROLLOUT_QUEUE, SANDBOX_QUEUE
from mainspring.status import CampaignKind, CampaignStatus, NodeRefusal, NodeStatus
from mainspring.words.waits import Host, Pending, PendingState, Scene
from view import moves
from view.viewer import Viewer

AT = datetime(2026, 11, 29, tzinfo=UTC)
PAGE = f"/c/{CAMPAIGN}"


def scene(queue: str) -> Scene:
    """A running campaign whose activity in `queue` nothing takes; all nodes are full."""
    unserved = Pending(
        of="first/g000000/000",
        activity="act",
        queue=queue,
        state=PendingState.SCHEDULED,
        attempt=1,
        since=AT - timedelta(seconds=40),
    )
    full = Host("vm", NodeStatus.UP, NodeRefusal.FULL, 8, 8, 1.0)
    return Scene(
        CAMPAIGN,
        CampaignKind.TRAIN,
        CampaignStatus.RUNNING,
        AT,
        is_running=True,
        pending=(unserved,),
        hosts=(full,),
    )


@pytest.fixture
async def home(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    await begin_campaign(db)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    monkeypatch.setattr(Viewer, "temporal", answered(None))
    return home_of(tmp_path, store_url)


def answered(what: object) -> Any:
    async def answer(*_: object) -> object:
        return what

    return answer


async def test_what_moves_by_itself_is_no_warning(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "look", answered(scene(SANDBOX_QUEUE)))
    async with viewer_of(home) as client:
        page, front = (await client.get(PAGE)).text, (await client.get("/")).text
        [wait] = (await client.get(f"{PAGE}.json")).json()["moves"]["waits"]
    assert wait["kind"] == "queued" and wait["sentence"].startswith("no sandbox node has room")
    assert '<li><span class="chip">queued</span> no sandbox node has room' in page
    assert "Blocked or failed" not in front and "no sandbox node has room" in front


async def test_what_a_person_has_to_do_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "look", answered(scene(ROLLOUT_QUEUE)))
    async with viewer_of(home) as client:
        page, front = (await client.get(PAGE)).text, (await client.get("/")).text
    assert '<li class="warn"><span class="chip">blocked</span> waiting for a rollout worker' in page
    assert "Blocked or failed" in front and "waiting for a rollout worker" in front


async def test_workers_that_a_command_here_brings_are_starting(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "look", answered(scene(ROLLOUT_QUEUE)))
    with Supervisor(home, CAMPAIGN).noted():
        async with viewer_of(home, waits_here=partial(waits_here, home)) as client:
            page, front = (await client.get(PAGE)).text, (await client.get("/")).text
    assert '<li><span class="chip">starting</span> starting a rollout worker' in page
    assert "Blocked or failed" not in front
    # After it has ended, the command that brings them again is named.
    async with viewer_of(home, waits_here=partial(waits_here, home)) as client:
        page = (await client.get(PAGE)).text
    assert f"run `mainspring train --name {CAMPAIGN}`: it brings all workers" in page
