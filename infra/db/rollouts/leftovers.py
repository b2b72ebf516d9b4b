"""Rows kept for a rollout only while it is played, dropped in the transaction that ends it."""

from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import PartialCallRow, RolloutRow, SnapshotRow
from infra.db.tables.rollout_ends import DONE


async def drop_of_ended(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> None:
    """Delete snapshots and partial replies of those rollouts under `conditions` that have ended."""
    ended = select(RolloutRow.id).where(DONE, *conditions)
    for row in (SnapshotRow, PartialCallRow):
        await connection.execute(delete(row).where(row.rollout_id.in_(ended)))
