"""Snapshots of sandboxes: the newest of each rollout that is being played, and no other.

Invariants: a snapshot holds what the turns before `num_turns` of one epoch left, so it serves that
epoch alone; an older one never takes the place of a newer one; a write under an older epoch raises
Fenced; a rollout that has ended has none (`leftovers`). Written and read by the sandbox activities.
"""

from dataclasses import dataclass

from sqlalchemy import delete, select

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_older
from infra.db.tables.models import SnapshotRow
from mainspring.ids import RolloutId

_COLUMNS = ["rollout_id", "epoch", "num_turns", "data"]
_PUT = fenced_insert(
    SnapshotRow,
    _COLUMNS,
    on_conflict=(
        "(rollout_id) DO UPDATE SET epoch = excluded.epoch, num_turns = excluded.num_turns, "
        "data = excluded.data, created_at = now() "
        "WHERE (snapshots.epoch, snapshots.num_turns) < (excluded.epoch, excluded.num_turns)"
    ),
    returning=["num_turns"],
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    num_turns: int
    """The turns whose effects it holds: all below this number."""
    data: bytes


async def put(db: Database, rollout: RolloutId, epoch: int, num_turns: int, data: bytes) -> None:
    """Keep a snapshot, unless the rollout has one as new or has ended. Raises Fenced for another
    epoch."""
    values = {"rollout_id": rollout, "epoch": epoch, "num_turns": num_turns, "data": data}
    async with db.statement() as connection:
        if await connection.scalar(_PUT, values) is None:
            await refuse_older(connection, rollout, epoch)


async def newest(db: Database, rollout: RolloutId, epoch: int) -> Snapshot | None:
    """The rollout's snapshot; None when there is none."""
    async with db.statement() as connection:
        row = (
            await connection.execute(
                select(SnapshotRow.num_turns, SnapshotRow.data).where(
                    SnapshotRow.rollout_id == rollout, SnapshotRow.epoch == epoch
                )
            )
        ).one_or_none()
    return None if row is None else Snapshot(*row)


async def drop(db: Database, rollout: RolloutId) -> None:
    """Delete the snapshot: it is of no use. Dropping twice is fine."""
    async with db.statement() as connection:
        await connection.execute(delete(SnapshotRow).where(SnapshotRow.rollout_id == rollout))
