"""Leases follow the node that opened last; only it closes them."""

import pytest
from store_records import add_claimed_rollout, finish

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.nodes import sandboxes
from infra.db.rollouts import rollouts
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.status import RolloutPhase, SandboxPurpose, SandboxStatus
from mainspring.tasks.sandbox_choice import BWRAP

SANDBOX = SandboxId("first.g000000.000.e0.s0")
NODE_A, NODE_B = NodeId("a"), NodeId("b")


async def open_on(db: Database, node: NodeId, rollout: RolloutId, epoch: int = 0) -> None:
    await sandboxes.open_lease(
        db,
        SANDBOX,
        rollout,
        epoch,
        purpose=SandboxPurpose.AGENT,
        node=node,
        backend=BWRAP,
    )


async def test_open_and_close_once(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await open_on(db, NODE_A, rollout)
    await open_on(db, NODE_A, rollout)
    [lease] = await sandboxes.open_leases(db, NODE_A)
    assert (lease.sandbox, lease.rollout, lease.epoch) == (SANDBOX, rollout, 0)
    assert await sandboxes.open_leases(db, NODE_B) == []
    assert await sandboxes.close_lease(db, SANDBOX, NODE_A)
    assert not await sandboxes.close_lease(db, SANDBOX, NODE_A, SandboxStatus.REAPED)
    [closed] = await sandboxes.rollout_leases(db, rollout)
    assert closed.status is SandboxStatus.CLOSED
    assert closed.closed_at is not None


async def test_opening_on_another_node_moves_the_lease(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await open_on(db, NODE_A, rollout)
    await open_on(db, NODE_B, rollout)
    assert await sandboxes.open_leases(db, NODE_A) == []
    assert not await sandboxes.close_lease(db, SANDBOX, NODE_A, SandboxStatus.LOST)
    [lease] = await sandboxes.open_leases(db)
    assert lease.node == NODE_B
    await sandboxes.close_lease(db, SANDBOX, NODE_B, SandboxStatus.LOST)
    await open_on(db, NODE_A, rollout)
    [again] = await sandboxes.open_leases(db)
    assert (again.node, again.status, again.closed_at) == (NODE_A, SandboxStatus.OPEN, None)


async def test_leases_that_nothing_will_close(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await open_on(db, NODE_A, rollout)
    assert await sandboxes.leases_without_live_rollout(db, NODE_A) == []
    await rollouts.claim(db, rollout, "run-b")
    [stale] = await sandboxes.leases_without_live_rollout(db, NODE_A)
    assert stale.sandbox == SANDBOX
    with pytest.raises(Fenced, match="epoch 0 is over"):
        await open_on(db, NODE_B, rollout)
    await open_on(db, NODE_A, rollout, epoch=1)
    assert await sandboxes.leases_without_live_rollout(db) == []
    await finish(db, rollout, 1, 0.0)
    assert len(await sandboxes.leases_without_live_rollout(db)) == 1
    assert await sandboxes.leases_without_live_rollout(db, NODE_B) == []
    with pytest.raises(Fenced, match="has ended"):
        await open_on(db, NODE_B, rollout, epoch=1)


async def test_rollouts_whose_sandbox_may_have_no_lease(db: Database) -> None:
    """A node that was killed may have begun to open it, or be done with the tests."""
    rollout = await add_claimed_rollout(db)
    assert await sandboxes.between_sandboxes(db, 10) == [rollout]
    for phase in (RolloutPhase.RUNNING, RolloutPhase.GRADING):
        await rollouts.set_phase(db, rollout, 0, phase)
        assert await sandboxes.between_sandboxes(db, 10) == [rollout]
        await open_on(db, NODE_A, rollout)
        assert await sandboxes.between_sandboxes(db, 10) == []
        await sandboxes.close_lease(db, SANDBOX, NODE_A)
    assert await sandboxes.between_sandboxes(db, 0) == []
    await finish(db, rollout, 0, 1.0)
    assert await sandboxes.between_sandboxes(db, 10) == []
