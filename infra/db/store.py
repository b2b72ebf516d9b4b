"""The store itself: its identity, the Temporal namespace of its work, whose turn it is to sweep it.

Invariants: the identity is made once, by the migration, and never changes; the namespace is the
first that was recorded, until an operator moves the work; of any number of processes that ask for a
turn within an interval one gets it, and while it holds the turn no other does. Used to keep apart
the Temporal namespaces of several stores, and by the sweep.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NewType, TypeVar

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.models import StoreRow
from mainspring.errors import DatabaseError

StoreId = NewType("StoreId", str)
T = TypeVar("T")

AWAKE_S = 5.0
"""Between two signs of life of a transaction that others read the same moment with."""

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
        yield bool(mine)
        if mine:
            await connection.execute(update(StoreRow).values(swept_at=func.clock_timestamp()))


async def in_snapshot(connection: AsyncConnection, work: Callable[[str], Awaitable[T]]) -> T:
    """The result of `work`, which gets the name under which another program sees what this
    transaction sees. The transaction is kept awake: an idle one may be ended by the server."""
    name = await connection.scalar(text("SELECT pg_export_snapshot()"))
    task = asyncio.ensure_future(work(str(name)))
    try:
        while not (await asyncio.wait([task], timeout=AWAKE_S))[0]:
            await connection.execute(text("SELECT 1"))
        return task.result()
    finally:
        task.cancel()
