"""Leases: which sandboxes exist as far as anyone has said, on which node, and for which rollout.

Invariants: a sandbox has one lease, held by the node that opened it last; only that node closes it.
Reapers compare leases with what is really there and remove what no lease of theirs names.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, update

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.models import RolloutRow, SandboxPurpose, SandboxRow
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.status import RolloutPhase, SandboxStatus
from mainspring.tasks import BackendName

_COLUMNS = (
    SandboxRow.id,
    SandboxRow.rollout_id,
    SandboxRow.epoch,
    SandboxRow.purpose,
    SandboxRow.node,
    SandboxRow.backend,
    SandboxRow.status,
    SandboxRow.opened_at,
    SandboxRow.closed_at,
)
_OPEN_LEASE = fenced_insert(
    SandboxRow,
    ["id", "rollout_id", "epoch", "purpose", "node", "backend", "status"],
    on_conflict=(
        "(id) DO UPDATE SET epoch = excluded.epoch, node = excluded.node, "
        "backend = excluded.backend, status = excluded.status, opened_at = now(), closed_at = NULL"
    ),
    returning=["id"],
)


@dataclass(frozen=True, slots=True)
class Lease:
    sandbox: SandboxId
    rollout: RolloutId
    epoch: int
    purpose: SandboxPurpose
    node: NodeId
    backend: BackendName
    status: SandboxStatus
    opened_at: datetime
    closed_at: datetime | None


async def open_lease(
    database: Database,
    sandbox: SandboxId,
    rollout: RolloutId,
    epoch: int,
    *,
    purpose: SandboxPurpose,
    node: NodeId,
    backend: BackendName,
) -> None:
    """Write this before the sandbox is made, so that a crash in between leaves a lease and never a
    sandbox that nobody knows. Opening again moves the lease here. Raises Fenced."""
    values = {
        "id": sandbox,
        "rollout_id": rollout,
        "epoch": epoch,
        "purpose": purpose,
        "node": node,
        "backend": backend,
        "status": SandboxStatus.OPEN,
    }
    async with database.transaction() as connection:
        if await connection.scalar(_OPEN_LEASE, values) is None:
            await refuse_older(connection, rollout, epoch)
            refuse_finished(rollout)


async def close_lease(
    database: Database,
    sandbox: SandboxId,
    node: NodeId,
    status: SandboxStatus = SandboxStatus.CLOSED,
) -> bool:
    """Write this after the sandbox is gone. False when `node` holds no open lease on it: it was
    closed before, or another node has taken it over."""
    async with database.transaction() as connection:
        closed = await connection.scalar(
            update(SandboxRow)
            .where(
                SandboxRow.id == sandbox,
                SandboxRow.node == node,
                SandboxRow.status == SandboxStatus.OPEN,
            )
            .values(status=status, closed_at=func.now())
            .returning(SandboxRow.id)
        )
    return closed is not None


async def open_leases(database: Database, node: NodeId | None = None) -> list[Lease]:
    """Oldest first; of every node when `node` is None."""
    return await _leases(database, node)


async def leases_without_live_rollout(
    database: Database, node: NodeId | None = None
) -> list[Lease]:
    """Open leases whose rollout has ended or begun another epoch: nothing will close them."""
    return await _leases(
        database,
        node,
        or_(RolloutRow.phase == RolloutPhase.DONE, RolloutRow.epoch != SandboxRow.epoch),
    )


async def rollout_leases(database: Database, rollout: RolloutId) -> list[Lease]:
    """Every sandbox the rollout ever had, oldest first."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            select(*_COLUMNS)
            .where(SandboxRow.rollout_id == rollout)
            .order_by(SandboxRow.opened_at, SandboxRow.id)
        )
        return [Lease(*row) for row in rows]


async def _leases(
    database: Database, node: NodeId | None, *conditions: ColumnElement[bool]
) -> list[Lease]:
    statement: Any = (
        select(*_COLUMNS)
        .join(RolloutRow, RolloutRow.id == SandboxRow.rollout_id)
        .where(SandboxRow.status == SandboxStatus.OPEN, *conditions)
        .order_by(SandboxRow.opened_at, SandboxRow.id)
    )
    if node is not None:
        statement = statement.where(SandboxRow.node == node)
    async with database.transaction() as connection:
        return [Lease(*row) for row in await connection.execute(statement)]
