"""Actions of the viewer where a service, a worker or a node is away, and on nodes."""

import asyncio
import json
import socket
from pathlib import Path

import httpx
import pytest
from asking import ask, do, outcome, send, told
from store_records import CAMPAIGN, RUN, add_group, begin_campaign, config
from viewed import home_of, viewer_of

from cli.operations.acts.offered import all_actions
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import campaign_launch as launch
from infra.db.connect import connections
from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.nodes.nodes import NodeBeat
from infra.db.nodes.sandboxes import open_lease
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns, events, removal
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, NodeId, SandboxId
from mainspring.status import CampaignStatus, SandboxPurpose
from view.actions.acts import AT_ONCE


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def client_of(home: Path):  # type: ignore[no-untyped-def]
    return viewer_of(home, actions=all_actions(home))


async def test_a_store_that_is_away_is_named_and_nothing_is_done(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    home = home_of(tmp_path, store_url)
    async with client_of(home) as client:
        form = await ask(client, f"/do/cancel?of={CAMPAIGN}")
        home_of(tmp_path, f"postgresql://x:y@127.0.0.1:{free_port()}/none")
        answer = await send(client, form, typed=CAMPAIGN)
        assert answer.status_code == 503 and "cannot be used" in answer.text
        # Only what was asked by a link asks again by itself.
        assert "http-equiv" not in answer.text
        asked = await client.get(f"/do/cancel?of={CAMPAIGN}")
        assert asked.status_code == 503 and 'http-equiv="refresh"' in asked.text


async def test_temporal_that_is_away_is_named_and_nothing_is_done(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    home = home_of(tmp_path, store_url)
    address = f"127.0.0.1:{free_port()}"
    stack = {"database_url": store_url, "temporal_address": address}
    (home / "stack.json").write_text(json.dumps(stack))
    async with client_of(home) as client:
        told = await do(client, f"/do/cancel?of={CAMPAIGN}", typed=CAMPAIGN)
        assert f"Temporal at {address}" in told or address in told
        told = await do(client, f"/do/pause?of={CAMPAIGN}")
        assert address in told
    assert (await campaigns.get(db, CAMPAIGN)).status is CampaignStatus.RUNNING
    assert not [each for each in await events.newest(db) if each.kind == "command"]


async def test_a_campaign_that_was_deleted_meanwhile_is_not_found(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    async with client_of(home_of(tmp_path, store_url)) as client:
        form = await ask(client, f"/do/cancel?of={CAMPAIGN}")
        await campaigns.set_status(db, CAMPAIGN, CampaignStatus.CANCELLED)
        await removal.remove(db, CAMPAIGN, await removal.mark(db, CAMPAIGN))
        answer = await send(client, form, typed=CAMPAIGN)
        assert answer.status_code == 404 and "no campaign first is stored" in answer.text


async def test_many_readers_at_once_take_few_connections(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    async with client_of(home_of(tmp_path, store_url)) as client:
        asked = [asyncio.create_task(client.get(f"/do/cancel?of={CAMPAIGN}")) for _ in range(60)]
        most = 0
        while not all(task.done() for task in asked):
            most = max(most, (await connections(db)).ours)
            await asyncio.sleep(0.02)
        assert {task.result().status_code for task in asked} == {200}
    # Two of each preview, and those of this test.
    assert 0 < most <= 2 * AT_ONCE + 8


async def test_without_a_worker_the_order_is_recorded(stack: StackInfo) -> None:
    name = CampaignId("nobody-works")
    async with Database.open(stack.database_url) as db:
        await campaigns.create(db, config(name))
        client = await connect(load_settings(stack.home), db)
        handle = await launch.start(client, db, name)
        try:
            async with client_of(stack.home) as viewer:
                told = await do(viewer, f"/do/pause?of={name}")
                assert "the order is recorded, and no rollout worker runs" in told
                told = await do(viewer, f"/do/cancel?of={name}", typed=name)
                assert "is being cancelled; no rollout worker runs: it is done when one" in told
        finally:
            await handle.terminate()


@pytest.fixture
async def node(db: Database) -> NodeId:
    await begin_campaign(db)
    _, [rollout] = await add_group(db, size=1)
    name = NodeId("host \u202e <b>'1'")
    await nodes.beat(db, NodeBeat(name, 4, 0, None, ["bwrap"], [], 1, 1, "1", 5.0, None))
    await rollouts.claim(db, rollout, RUN)
    await open_lease(
        db,
        SandboxId("one"),
        rollout,
        0,
        purpose=SandboxPurpose.AGENT,
        node=name,
        backend="bwrap",
    )
    return name


async def offered(client: httpx.AsyncClient) -> list[str]:
    page = (await client.get("/nodes")).text
    return [part.partition("?")[0] for part in page.split('href="/do/')[1:]]


async def test_a_node_is_drained_and_takes_work_again(
    db: Database, store_url: str, tmp_path: Path, node: NodeId
) -> None:
    async with client_of(home_of(tmp_path, store_url)) as client:
        assert await offered(client) == ["drain"]
        page = await client.get("/do/drain", params={"of": node})
        assert "1 sandbox is open on it now" in told(page.text)
        assert "Open: first/g000000/000 (agent)." in told(page.text)
        address = str(page.url.raw_path, "ascii")
        done = await do(client, address)
        assert "is told to drain" in done or "is drained" in done
        assert await offered(client) == ["undrain"]
        # Its page was open for longer.
        late = await send(client, await ask(client, address))
        assert "told to drain" in await outcome(client, late) or late.status_code == 303
        done = await do(client, address.replace("/do/drain", "/do/undrain"))
        assert "is told to take new work again" in done
        assert await offered(client) == ["drain"]
        unknown = await client.get("/do/drain?of=nowhere")
        assert unknown.status_code == 400 and "no node nowhere has registered" in unknown.text
    told_events = [each for each in await events.newest(db) if each.kind == "command"]
    assert len(told_events) == 3 and all(e.by.startswith("viewer of ") for e in told_events)
