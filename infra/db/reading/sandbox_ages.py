"""Sandboxes that have been open for long: what a node may hold for nothing.

Read only. Used by the viewer.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.columns import seconds
from infra.db.tables.models import SandboxRow
from mainspring.ids import RolloutId
from mainspring.status import SandboxPurpose, SandboxStatus


@dataclass(frozen=True, slots=True)
class OldSandbox:
    id: str
    rollout: RolloutId
    purpose: SandboxPurpose
    node: str
    opened_at: datetime
    age_s: float


async def open_for(connection: AsyncConnection, age_s: float, limit: int) -> list[OldSandbox]:
    """Open for at least this long, the oldest first."""
    rows = await connection.execute(
        select(
            SandboxRow.id,
            SandboxRow.rollout_id,
            SandboxRow.purpose,
            SandboxRow.node,
            SandboxRow.opened_at,
            seconds(func.now() - SandboxRow.opened_at),
        )
        .where(
            SandboxRow.status == SandboxStatus.OPEN,
            SandboxRow.opened_at < func.now() - timedelta(seconds=age_s),
        )
        .order_by(SandboxRow.opened_at)
        .limit(limit)
    )
    return [OldSandbox(*row) for row in rows]
