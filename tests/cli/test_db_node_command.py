"""`mainspring node list` and `mainspring node drain`."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from store_records import add_claimed_rollout
from typer.testing import CliRunner

from cli.machine import node
from cli.operations.machine import drain
from infra.db.database import Database
from infra.db.nodes import nodes, sandboxes
from infra.db.nodes.nodes import NodeBeat
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.status import NodeRefusal, SandboxPurpose
from mainspring.tasks.sandbox_choice import BWRAP

BUSY, EMPTY = NodeId("containers-17.rack-4"), NodeId("b")


@pytest.fixture
async def fleet(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    """Two nodes in the database that the commands use."""
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(drain, "LOOK_EVERY_S", 0.05)
    await say(db, BUSY, num_open=32, refusal=NodeRefusal.LOW_MEMORY)
    await say(db, EMPTY)
    return db


async def say(
    db: Database, name: NodeId, *, num_open: int = 0, refusal: NodeRefusal | None = None
) -> None:
    await nodes.beat(
        db,
        NodeBeat(
            id=name,
            capacity=128,
            num_open=num_open,
            refusal=refusal,
            backends=["bwrap", "docker"],
            images=["a:1"],
            disk_free_mb=1_234_567,
            memory_free_mb=5_017,
            version="0.1.0",
            running_s=3.0,
            clock=datetime.now(UTC) + timedelta(hours=2) if name == BUSY else datetime.now(UTC),
        ),
    )


async def test_list(fleet: Database) -> None:
    await lease(fleet)
    shown = await run("list")
    assert max(map(len, shown.splitlines())) <= 100
    assert str(BUSY) in shown and "1/128" in shown and "low memory" in shown
    assert "32" not in shown, "what is open stands in the store, not in the last beat"
    assert "bwrap, docker" in shown and "1206 GB" in shown and "4.9 GB" in shown
    busy, empty = sorted(json.loads(await run("list", "--json")), key=lambda row: row["takes_new"])
    assert (busy["node"], busy["status"], busy["refusal"]) == (BUSY, "up", "low memory")
    assert (empty["node"], empty["takes_new"], empty["num_open"]) == (EMPTY, True, 0)
    assert empty["images"] == ["a:1"] and empty["seen_s"] < 30


async def test_drain_asks_and_undo_takes_it_back(fleet: Database) -> None:
    await lease(fleet)
    assert "1 sandboxes" in await run("drain", BUSY)
    assert await drains(fleet) == {BUSY: True, EMPTY: False}
    asked = json.loads(await run("drain", EMPTY, "--json"))
    assert (asked["draining"], asked["status"]) == (True, "draining")
    await run("drain", BUSY, "--undo")
    assert await drains(fleet) == {BUSY: False, EMPTY: True}


async def test_drain_waits_until_the_node_is_empty(fleet: Database) -> None:
    waiting = asyncio.create_task(run("drain", EMPTY, "--wait", "--json"))
    while not (await drains(fleet))[EMPTY]:
        await asyncio.sleep(0.02)
    await say(fleet, EMPTY, refusal=NodeRefusal.DRAINING)
    last = (await waiting).splitlines()[-1]
    assert json.loads(last)["status"] == "drained"
    assert "may be stopped" in await run("drain", EMPTY, "--wait")


async def test_drain_says_what_is_still_open_when_the_time_is_up(fleet: Database) -> None:
    rollout = await lease(fleet)
    with pytest.raises(WorkFailed, match=rf"{rollout} \(agent\)") as error:
        await run("drain", BUSY, "--wait", "--timeout-s", "0.2")
    assert error.value.exit_code == 4
    with pytest.raises(WorkFailed, match="not said that it heard"):
        await run("drain", EMPTY, "--wait", "--timeout-s", "0.2")


async def test_an_unknown_node(fleet: Database) -> None:
    with pytest.raises(UsageError, match=str(BUSY)) as error:
        await run("drain", "c")
    assert error.value.exit_code == 2
    with pytest.raises(UsageError, match="--wait"):
        await run("drain", BUSY, "--wait", "--undo")


async def test_a_node_that_said_goodbye_has_stopped_and_waits_for_nothing(
    fleet: Database,
) -> None:
    await nodes.say_goodbye(fleet, EMPTY)
    shown = {row["node"]: row for row in json.loads(await run("list", "--json"))}
    assert (shown[EMPTY]["status"], shown[EMPTY]["takes_new"]) == ("stopped", False)
    assert shown[BUSY]["status"] == "up"
    drained = json.loads((await run("drain", EMPTY, "--wait", "--json")).splitlines()[-1])
    assert drained["status"] == "stopped"
    await say(fleet, EMPTY)
    [row] = [each for each in json.loads(await run("list", "--json")) if each["node"] == EMPTY]
    assert row["status"] == "draining", "its next process is up, and was asked to drain"


async def lease(db: Database) -> RolloutId:
    """One agent's sandbox on BUSY."""
    rollout = await add_claimed_rollout(db)
    await sandboxes.open_lease(
        db,
        SandboxId("s"),
        rollout,
        0,
        purpose=SandboxPurpose.AGENT,
        node=BUSY,
        backend=BWRAP,
    )
    return rollout


async def drains(db: Database) -> dict[NodeId, bool]:
    return {record.said.id: record.draining for record in await nodes.list_nodes(db)}


async def run(*arguments: str) -> str:
    app = typer.Typer()
    app.add_typer(node.app)
    # In a thread, as on the command line: no event loop of ours around it.
    result = await asyncio.to_thread(CliRunner().invoke, app, ["node", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output
