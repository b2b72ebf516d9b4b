"""The store itself: its identity, the Temporal namespace of its work, whose turn it is to sweep it.

Invariants: the identity is made once, by the migration, and never changes; the namespace is the
first that was recorded, until an operator moves the work; of any number of processes that ask for a
turn within an interval one gets it, and while it holds the turn no other does. Used to keep apart
the Temporal namespaces of several stores, and by the sweep.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NewType

from sqlalchemy import func, or_, select, text, update

from infra.db.database import Database, kept
from infra.db.tables.models import StoreRow
from mainspring.errors import DatabaseError

StoreId = NewType("StoreId", str)

_SWEEP_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtextextended('sweep of the store', 0))")


async def identity(db: Database) -> StoreId:
    """The database's random identity. Raises DatabaseError, also when somebody deleted the row."""
    async with db.transaction() as connection:
        found = await connection.scalar(select(StoreRow.id))
    if found is None:
        raise DatabaseError(
            f"database {db.name} has lost its identity: its table `store` is empty",
            remedy="restore the row from a backup: Temporal's namespace names its id",
        )
    return StoreId(found)


async def namespace(db: Database) -> str | None:
    """The Temporal namespace that the work is in; None before anybody connected. Raises
    DatabaseError."""
    async with db.transaction() as connection:
        return await connection.scalar(select(StoreRow.namespace))


async def put_namespace(db: Database, name: str) -> str:
    """Record the Temporal namespace unless there is one; the one that stands. Raises
    DatabaseError."""
    async with db.transaction() as connection:
        await connection.execute(
            update(StoreRow).where(StoreRow.namespace.is_(None)).values(namespace=name)
        )
        return await connection.scalar(select(StoreRow.namespace)) or name


async def move_namespace(db: Database, name: str) -> None:
    """Record another Temporal namespace. Raises DatabaseError."""
    async with db.transaction() as connection:
        await connection.execute(update(StoreRow).values(namespace=name))


@asynccontextmanager
async def sweep_turn(db: Database, every: timedelta) -> AsyncIterator[bool]:
    """Take a turn at sweeping: True for one caller, once in `every`; the turn is over when
    the block ends, and counts as taken only when it ends without an error."""
    async with db.transaction() as connection:
        mine = bool(await connection.scalar(_SWEEP_LOCK)) and await connection.scalar(
            select(StoreRow.id).where(
                or_(StoreRow.swept_at.is_(None), StoreRow.swept_at < func.now() - every)
            )
        )
        async with kept(connection):
            yield bool(mine)
        if mine:
            await connection.execute(update(StoreRow).values(swept_at=func.clock_timestamp()))
