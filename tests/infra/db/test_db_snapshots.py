"""Snapshots: the newest one counts, for its own epoch; none outlives its rollout."""

import asyncio
import os

import pytest
from sqlalchemy import func, select
from store_records import RUN, add_claimed_rollout, add_group, finish

from infra.db.database import Database
from infra.db.fence import Fenced, UnknownId
from infra.db.rollouts import groups, orphans, rollouts, snapshots
from infra.db.rollouts.orphans import Playing
from infra.db.rollouts.snapshots import Snapshot
from infra.db.tables.models import SnapshotRow
from mainspring.ids import GroupId, RolloutId


async def num_kept(db: Database) -> int:
    async with db.transaction() as connection:
        return await connection.scalar(select(func.count()).select_from(SnapshotRow)) or 0


async def test_the_newest_stands_whoever_comes_last(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    assert await snapshots.newest(db, rollout, 0) is None
    large = os.urandom(5 << 20)
    await snapshots.put(db, rollout, 0, 2, b"\0two")
    await asyncio.gather(
        snapshots.put(db, rollout, 0, 4, large),
        *(snapshots.put(db, rollout, 0, turns, b"older") for turns in (1, 2, 3)),
    )
    await snapshots.put(db, rollout, 0, 4, b"again")
    assert await snapshots.newest(db, rollout, 0) == Snapshot(4, large)
    assert await num_kept(db) == 1
    await snapshots.drop(db, rollout)
    await snapshots.drop(db, rollout)
    assert await snapshots.newest(db, rollout, 0) is None


async def test_one_serves_its_own_epoch_and_older_ones_are_refused(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await snapshots.put(db, rollout, 0, 9, b"old life")
    await rollouts.new_epoch(db, rollout, 0, RUN)
    assert await snapshots.newest(db, rollout, 1) is None
    with pytest.raises(Fenced, match="epoch 0 is over"):
        await snapshots.put(db, rollout, 0, 10, b"late")
    await snapshots.put(db, rollout, 1, 1, b"new life")
    assert await snapshots.newest(db, rollout, 1) == Snapshot(1, b"new life")
    assert await num_kept(db) == 1
    with pytest.raises(UnknownId, match="nobody"):
        await snapshots.put(db, RolloutId("nobody"), 0, 1, b"")


@pytest.mark.parametrize("end", ["finished", "its group closed", "swept"])
async def test_the_end_of_a_rollout_is_the_end_of_its_snapshot(db: Database, end: str) -> None:
    rollout = await add_claimed_rollout(db)
    _, [playing] = await add_group(db, index=1, size=1)
    await rollouts.claim(db, playing, RUN)
    for each in (rollout, playing):
        await snapshots.put(db, each, 0, 1, b"x")
    if end == "finished":
        await finish(db, rollout, 0, 1.0)
    elif end == "its group closed":
        await groups.finish_group(db, GroupId((await rollouts.get(db, rollout)).group))
    else:
        assert await orphans.end_rollout(db, Playing(rollout, 0, RUN), "its workflow is gone")
    assert await snapshots.newest(db, rollout, 0) is None
    await snapshots.put(db, rollout, 0, 2, b"late")
    assert await snapshots.newest(db, rollout, 0) is None
    assert await snapshots.newest(db, playing, 0) == Snapshot(1, b"x")


async def test_an_end_and_a_late_snapshot_leave_none(db: Database) -> None:
    rollout = await add_claimed_rollout(db)
    await asyncio.gather(
        *(snapshots.put(db, rollout, 0, turns, os.urandom(1 << 16)) for turns in range(1, 8)),
        finish(db, rollout, 0, 0.0),
    )
    assert await num_kept(db) == 0
