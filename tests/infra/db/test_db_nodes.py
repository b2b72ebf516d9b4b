"""What a node says stands until it says something else; what an operator asks outlives both."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, update
from store_records import add_claimed_rollout

from infra.db.database import Database
from infra.db.nodes import nodes, sandboxes
from infra.db.nodes.nodes import FORGOTTEN_AFTER, NodeBeat, NodeRecord
from infra.db.reading import volume
from infra.db.tables.models import NodeRow
from mainspring.errors import UsageError
from mainspring.ids import NodeId, SandboxId
from mainspring.protocol.timeouts import NODE_LOST_AFTER_S
from mainspring.status import NodeRefusal, NodeStatus, SandboxPurpose
from mainspring.tasks.sandbox_choice import BWRAP

A, B = NodeId("a"), NodeId("b")
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def said(node: NodeId, **changes: object) -> NodeBeat:
    values: dict[str, object] = {
        "capacity": 4,
        "num_open": 0,
        "refusal": None,
        "backends": ["bwrap", "docker"],
        "images": [],
        "disk_free_mb": 9000,
        "memory_free_mb": 700,
        "version": "0.1.0",
        "running_s": 60.0,
        "clock": STARTED,
    }
    return NodeBeat(id=node, **(values | changes))  # type: ignore[arg-type]


async def stored(db: Database, node: NodeId) -> NodeRecord:
    [record] = [each for each in await nodes.list_nodes(db) if each.said.id == node]
    return record


async def not_seen_for(db: Database, node: NodeId, seconds: float) -> None:
    async with db.transaction() as connection:
        await connection.execute(
            update(NodeRow)
            .where(NodeRow.id == node)
            .values(seen_at=func.now() - timedelta(seconds=seconds))
        )


async def test_the_last_beat_stands(db: Database) -> None:
    assert not await nodes.beat(db, said(B))
    assert not await nodes.beat(db, said(A, num_open=1, images=["x:1", "y:2"]))
    last = said(A, num_open=4, refusal=NodeRefusal.FULL, images=["x:1"], disk_free_mb=10)
    assert not await nodes.beat(db, last)
    assert [record.said.id for record in await nodes.list_nodes(db)] == [A, B]
    record = await stored(db, A)
    assert record.said == last
    assert (record.status, record.draining, record.num_leased) == (NodeStatus.UP, False, 0)
    assert 0 <= record.seen_s < 10


async def test_a_node_is_dead_when_it_is_silent_and_lives_when_it_speaks(db: Database) -> None:
    await nodes.beat(db, said(A))
    await not_seen_for(db, A, NODE_LOST_AFTER_S - 5)
    assert (await stored(db, A)).status is NodeStatus.UP
    await not_seen_for(db, A, NODE_LOST_AFTER_S + 1)
    assert (await stored(db, A)).status is NodeStatus.LOST
    await nodes.beat(db, said(A))
    assert (await stored(db, A)).status is NodeStatus.UP


async def test_a_node_that_is_long_gone_and_holds_nothing_is_forgotten(db: Database) -> None:
    for node, more_s in ((A, 60), (B, 60), (NodeId("c"), -60)):
        await nodes.beat(db, said(node))
        await not_seen_for(db, node, FORGOTTEN_AFTER.total_seconds() + more_s)
    rollout = await add_claimed_rollout(db)
    lease = SandboxId("s1")
    await sandboxes.open_lease(
        db, lease, rollout, 0, purpose=SandboxPurpose.AGENT, node=B, backend=BWRAP
    )
    assert await nodes.forget_gone(db) == 1
    assert [each.said.id for each in await nodes.list_nodes(db)] == [B, "c"]


async def test_drained_means_heard_and_empty(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await nodes.beat(db, said(A))
    sandbox = SandboxId("s")
    await sandboxes.open_lease(
        db, sandbox, rollout, 0, purpose=SandboxPurpose.GRADE, node=A, backend=BWRAP
    )
    await nodes.set_draining(db, A, True)
    await nodes.set_draining(db, A, True)
    assert (await stored(db, A)).status is NodeStatus.DRAINING
    assert await nodes.beat(db, said(A, refusal=NodeRefusal.DRAINING))
    record = await stored(db, A)
    assert (record.status, record.num_leased) == (NodeStatus.DRAINING, 1)
    await sandboxes.close_lease(db, sandbox, A)
    assert (await stored(db, A)).status is NodeStatus.DRAINED
    # It has nothing open, but says that it still takes: it has not heard.
    assert await nodes.beat(db, said(A))
    assert (await stored(db, A)).status is NodeStatus.DRAINING
    await nodes.set_draining(db, A, False)
    assert not await nodes.beat(db, said(A))
    assert (await stored(db, A)).status is NodeStatus.UP


async def test_an_unknown_node_is_answered_with_the_known_ones(db: Database) -> None:
    with pytest.raises(UsageError, match="worker sandbox"):
        await nodes.set_draining(db, A, True)
    await nodes.beat(db, said(B))
    await nodes.beat(db, said(A))
    with pytest.raises(UsageError, match=r"no node c has.*\n.*a, b"):
        await nodes.set_draining(db, NodeId("c"), True)


async def test_the_least_full_node_that_has_the_image_and_takes_it(db: Database) -> None:
    image = "docker.io/library/python"
    here = ["other:1", "python:latest"]
    assert await nodes.with_image(db, image) is None
    await nodes.beat(db, said(A, images=here, num_open=1, capacity=2))
    await nodes.beat(db, said(B, images=here, num_open=2, capacity=8))
    await nodes.beat(db, said(NodeId("c"), images=["other:1"]))
    assert await nodes.with_image(db, image) == B
    assert await nodes.with_image(db, "python") == B
    assert await nodes.with_image(db, "python:3") is None
    await nodes.beat(db, said(B, images=here, num_open=8, capacity=8, refusal=NodeRefusal.FULL))
    assert await nodes.with_image(db, image) == A
    await nodes.set_draining(db, A, True)
    assert await nodes.with_image(db, image) is None
    await nodes.set_draining(db, A, False)
    await not_seen_for(db, A, NODE_LOST_AFTER_S + 1)
    assert await nodes.with_image(db, image) is None


async def test_images_that_stay_the_same_are_not_written_again(db: Database) -> None:
    images = [f"docker.io/swebench/sweb.eval.x86_64.{n:05}{n * 7919 % 99991}" for n in range(1000)]

    async def beat_bytes(**changes: object) -> int:
        async with db.transaction() as connection:
            before = await volume.wal_position(connection)
        await nodes.beat(db, said(A, **changes))
        async with db.transaction() as connection:
            return await volume.wal_position(connection) - before

    await beat_bytes(images=images)
    await beat_bytes(images=images)
    assert await beat_bytes(images=list(images), num_open=3) < 3000
    assert (await stored(db, A)).said.images == images
    assert await beat_bytes(images=images[1:]) > 5000
    assert (await stored(db, A)).said.images == images[1:]
