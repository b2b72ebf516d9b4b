"""A campaign's cap over all nodes, and leases that died with their node."""

import asyncio

import pytest
from sqlalchemy import func, update
from store_records import RUN, add_claimed_rollout, add_group, begin_campaign

from infra.db.database import Database
from infra.db.nodes import nodes, sandboxes
from infra.db.nodes.nodes import NodeBeat
from infra.db.nodes.sandboxes import GONE_AFTER, MAX_WAIT_S, MIN_WAIT_S, CampaignFull
from infra.db.rollouts import rollouts
from infra.db.tables.models import NodeRow
from mainspring.ids import CampaignId, NodeId, RolloutId, SandboxId
from mainspring.status import SandboxPurpose, SandboxStatus
from mainspring.tasks.sandbox_choice import BWRAP

NODE = NodeId("a")


async def claimed_group(
    db: Database, size: int, campaign: CampaignId | None = None
) -> list[RolloutId]:
    name = await begin_campaign(db, campaign or CampaignId("first"))
    _, ids = await add_group(db, size=size, campaign=name)
    for rollout in ids:
        await rollouts.claim(db, rollout, RUN)
    return ids


async def open_one(
    db: Database,
    rollout: RolloutId,
    max_open: int | None,
    *,
    life: int = 0,
    purpose: SandboxPurpose = SandboxPurpose.AGENT,
) -> SandboxId:
    sandbox = SandboxId(f"{rollout}.{purpose}{life}")
    await sandboxes.open_lease(
        db,
        sandbox,
        rollout,
        0,
        purpose=purpose,
        node=NODE,
        backend=BWRAP,
        max_open=max_open,
    )
    return sandbox


async def test_all_at_once_no_more_than_the_cap_open(db: Database) -> None:
    ids = await claimed_group(db, 20)
    results = await asyncio.gather(
        *(open_one(db, rollout, 3) for rollout in ids), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, CampaignFull)]
    assert (len(refused), len(await sandboxes.open_leases(db))) == (17, 3)
    assert all(0.5 * MIN_WAIT_S <= each.retry_after_s <= 1.5 * MAX_WAIT_S for each in refused)
    # Those that wait are asked to spread their tries: 17 of them, five tries a second.
    assert min(each.retry_after_s for each in refused) >= 0.5 * 17 / 5
    [opened, *_] = [each for each in results if isinstance(each, str)]
    await sandboxes.close_lease(db, SandboxId(opened), NODE)
    waiting = next(r for r, got in zip(ids, results, strict=True) if got in refused)
    await open_one(db, waiting, 3)
    with pytest.raises(CampaignFull, match="max_open is 3"):
        await open_one(db, next(r for r in ids if SandboxId(f"{r}.agent0") == opened), 3)


async def test_a_rollout_rebuilds_its_sandbox_in_its_own_place(db: Database) -> None:
    first, second = await claimed_group(db, 2)
    await open_one(db, first, 1)
    await open_one(db, first, 1)
    await open_one(db, first, 1, life=1)
    with pytest.raises(CampaignFull):
        await open_one(db, second, 1)


async def test_gradings_and_other_campaigns_do_not_count(db: Database) -> None:
    first, second = await claimed_group(db, 2)
    [other] = await claimed_group(db, 1, CampaignId("second"))
    await open_one(db, other, None)
    await open_one(db, first, None, purpose=SandboxPurpose.GRADE)
    await open_one(db, second, 1)
    await open_one(db, first, None)


async def test_leases_of_a_node_that_is_gone(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    sandbox = await open_one(db, rollout, None)
    assert await sandboxes.leases_on_dead_nodes(db) == []
    await nodes.beat(
        db,
        NodeBeat(
            id=NODE,
            capacity=1,
            num_open=1,
            refusal=None,
            backends=["bwrap"],
            images=[],
            disk_free_mb=1,
            memory_free_mb=1,
            version="0",
            running_s=1.0,
            clock=None,
        ),
    )
    assert await sandboxes.leases_on_dead_nodes(db) == []
    async with db.transaction() as connection:
        await connection.execute(update(NodeRow).values(seen_at=func.now() - GONE_AFTER * 2))
    [lease] = await sandboxes.leases_on_dead_nodes(db)
    assert (lease.sandbox, lease.status) == (sandbox, SandboxStatus.OPEN)
