"""Leases: which sandboxes exist as far as anyone has said, on which node, and for which rollout.

Invariants: a sandbox has one lease, held by the node that opened it last; only that node closes it.
Reapers compare leases with what is really there and remove what no lease of theirs names. However
many nodes open at once, a capped campaign holds no more agent sandboxes than its cap.
"""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.tables.models import CampaignRow, NodeRow, RolloutRow, SandboxRow
from infra.db.tables.rollout_ends import DONE
from mainspring.errors import SandboxError
from mainspring.ids import CampaignId, NodeId, RolloutId, SandboxId
from mainspring.protocol.timeouts import LEASE_GONE_AFTER_S
from mainspring.status import FaultKind, RolloutPhase, SandboxPurpose, SandboxStatus

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
_CROSS_LEASE = text(
    "INSERT INTO sandboxes "
    "(id, rollout_id, epoch, purpose, node, backend, status, outlives_rollout) "
    f"SELECT :id, id, :epoch, '{SandboxPurpose.GRADE}', :node, :backend, "
    f"'{SandboxStatus.OPEN}', true FROM rollouts WHERE id = :rollout_id AND epoch = :epoch "
    "FOR SHARE ON CONFLICT (id) DO UPDATE SET node = excluded.node, backend = excluded.backend, "
    "status = excluded.status, opened_at = now(), closed_at = NULL RETURNING id"
)
_LOCK_CAMPAIGN = text(
    "SELECT pg_advisory_xact_lock(hashtextextended('sandboxes of ' || campaign_id, 0)) "
    "FROM rollouts WHERE id = :rollout"
)
# Words and not parameters: only then Postgres uses the small index of open leases.
_OTHERS_OPEN = text(
    "SELECT count(DISTINCT other.id) FROM rollouts AS mine "
    "JOIN rollouts AS other ON other.campaign_id = mine.campaign_id AND other.id <> mine.id "
    "JOIN sandboxes ON sandboxes.rollout_id = other.id "
    f"WHERE mine.id = :rollout AND sandboxes.status = '{SandboxStatus.OPEN}' "
    f"AND sandboxes.purpose = '{SandboxPurpose.AGENT}'"
)
_CLAIMED = text(
    "SELECT count(*) FROM rollouts WHERE run_id IS NOT NULL "
    "AND campaign_id = (SELECT campaign_id FROM rollouts WHERE id = :rollout) AND phase IN ("
    + ", ".join(f"'{phase}'" for phase in RolloutPhase if phase is not RolloutPhase.DONE)
    + ")"
)
GONE_AFTER = timedelta(seconds=LEASE_GONE_AFTER_S)
TRIES_PER_S = 5.0
"""At a full campaign, however many wait: so often somebody sees that a sandbox has been closed."""
MIN_WAIT_S = 1.0
MAX_WAIT_S = 30.0


class CampaignFull(SandboxError):
    """The campaign has as many sandboxes as it may have; ask again after `retry_after_s`."""

    fault = FaultKind.CAMPAIGN_FULL

    def __init__(self, message: str, *, remedy: str, retry_after_s: float) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Lease:
    sandbox: SandboxId
    rollout: RolloutId
    epoch: int
    purpose: SandboxPurpose
    node: NodeId
    backend: str
    status: SandboxStatus
    opened_at: datetime
    closed_at: datetime | None


async def open_lease(
    db: Database,
    sandbox: SandboxId,
    rollout: RolloutId,
    epoch: int,
    *,
    purpose: SandboxPurpose,
    node: NodeId,
    backend: str,
    max_open: int | None = None,
) -> None:
    """Record a sandbox's lease; write this before the sandbox is made, so that a crash in between
    leaves a lease and never an unknown sandbox. Opening again moves the lease here.

    Raises Fenced, and CampaignFull when `max_open` other rollouts of the campaign have an agent
    sandbox. The rollout's own do not count: it opens the next one because the last is lost."""
    values = {
        "id": sandbox,
        "rollout_id": rollout,
        "epoch": epoch,
        "purpose": purpose,
        "node": node,
        "backend": backend,
        "status": SandboxStatus.OPEN,
    }
    async with db.transaction() as connection:
        if max_open is not None:
            await _refuse_over(connection, rollout, max_open)
        if await connection.scalar(_OPEN_LEASE, values) is None:
            await refuse_older(connection, rollout, epoch)
            refuse_finished(rollout)


async def open_cross_lease(
    db: Database,
    sandbox: SandboxId,
    rollout: RolloutId,
    epoch: int,
    *,
    node: NodeId,
    backend: str,
) -> None:
    """Record, before it is made, the lease of a sandbox in which tests of others are run with the
    rollout's patch: it has ended, and its run has not. Raises Fenced for another epoch."""
    values = {"id": sandbox, "rollout_id": rollout, "epoch": epoch}
    async with db.statement() as connection:
        values |= {"node": node, "backend": backend}
        if await connection.scalar(_CROSS_LEASE, values) is None:
            await refuse_older(connection, rollout, epoch)


async def close_lease(
    db: Database,
    sandbox: SandboxId,
    node: NodeId,
    status: SandboxStatus = SandboxStatus.CLOSED,
) -> bool:
    """Record a lease's end; write this after the sandbox is gone. False when `node` holds no open
    lease on it: it was closed before, or another node has taken it over."""
    async with db.statement() as connection:
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


async def open_leases(db: Database, node: NodeId | None = None) -> list[Lease]:
    """Open leases, oldest first; of every node when `node` is None."""
    return await _leases(db, node)


async def open_of(db: Database, campaign: CampaignId) -> list[Lease]:
    """Open leases of one campaign, oldest first."""
    return await _leases(db, None, RolloutRow.campaign_id == campaign)


async def between_sandboxes(db: Database, limit: int) -> list[RolloutId]:
    """Rollouts under way that hold no sandbox, oldest first: a node may be about to open one for
    them, or to judge what the last one left."""
    has_lease = (
        select(SandboxRow.id)
        .where(SandboxRow.rollout_id == RolloutRow.id, SandboxRow.status == SandboxStatus.OPEN)
        .exists()
    )
    statement = (
        select(RolloutRow.id)
        .where(RolloutRow.phase.not_in((RolloutPhase.STARTING, RolloutPhase.DONE)), ~has_lease)
        .order_by(RolloutRow.created_at)
        .limit(limit)
    )
    async with db.statement() as connection:
        return [RolloutId(id) for id in await connection.scalars(statement)]


async def backends_on(db: Database, node: NodeId) -> list[str]:
    """Names of the backends that ever made a sandbox on this node."""
    async with db.transaction() as connection:
        statement = select(SandboxRow.backend).where(SandboxRow.node == node).distinct()
        return sorted(await connection.scalars(statement))


async def leases_without_live_rollout(db: Database, node: NodeId | None = None) -> list[Lease]:
    """Open leases whose rollout has ended or begun another epoch: nothing will close them. One for
    cross tests, which come after the rollout's end, lives as long as its run."""
    run_has_ended = (
        select(CampaignRow.id)
        .where(CampaignRow.id == RolloutRow.campaign_id, CampaignRow.finished_at.is_not(None))
        .exists()
    )
    return await _leases(
        db,
        node,
        or_(
            and_(DONE, or_(~SandboxRow.outlives_rollout, run_has_ended)),
            RolloutRow.epoch != SandboxRow.epoch,
        ),
    )


async def leases_on_dead_nodes(db: Database) -> list[Lease]:
    """Open leases on nodes that have not beat for GONE_AFTER: no process there can close them."""
    dead_nodes = select(NodeRow.id).where(NodeRow.seen_at < func.now() - GONE_AFTER)
    return await _leases(db, None, SandboxRow.node.in_(dead_nodes))


async def rollout_leases(db: Database, rollout: RolloutId) -> list[Lease]:
    """Every sandbox the rollout ever had, oldest first."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(*_COLUMNS)
            .where(SandboxRow.rollout_id == rollout)
            .order_by(SandboxRow.opened_at, SandboxRow.id)
        )
        return [Lease(*row) for row in rows]


async def lose_all(db: Database) -> int:
    """Close every open lease as lost: the store was restored, and their processes were not; how
    many there were."""
    async with db.transaction() as connection:
        lost = await connection.execute(
            update(SandboxRow)
            .where(SandboxRow.status == SandboxStatus.OPEN)
            .values(status=SandboxStatus.LOST, closed_at=func.now())
        )
        return lost.rowcount


async def _refuse_over(connection: AsyncConnection, rollout: RolloutId, max_open: int) -> None:
    """Until the transaction ends no other one opens a sandbox of this campaign under a cap."""
    parameters = {"rollout": rollout}
    await connection.execute(_LOCK_CAMPAIGN, parameters)
    num_open = await connection.scalar(_OTHERS_OPEN, parameters) or 0
    if num_open < max_open:
        return
    num_waiting = (await connection.scalar(_CLAIMED, parameters) or 0) - num_open
    wait_s = min(max(num_waiting / TRIES_PER_S, MIN_WAIT_S), MAX_WAIT_S)
    raise CampaignFull(
        f"rollout {rollout}: {num_open} other sandboxes of its campaign are open",
        remedy=f"sandbox.max_open is {max_open}; the next one opens when one is closed",
        # Not all at the same moment.
        retry_after_s=wait_s * random.uniform(0.5, 1.5),
    )


async def _leases(
    db: Database, node: NodeId | None, *conditions: ColumnElement[bool]
) -> list[Lease]:
    statement: Any = (
        select(*_COLUMNS)
        .join(RolloutRow, RolloutRow.id == SandboxRow.rollout_id)
        .where(SandboxRow.status == SandboxStatus.OPEN, *conditions)
        .order_by(SandboxRow.opened_at, SandboxRow.id)
    )
    if node is not None:
        statement = statement.where(SandboxRow.node == node)
    async with db.transaction() as connection:
        return [Lease(*row) for row in await connection.execute(statement)]
