"""The store itself: its identity, the Temporal namespace of its work, its clock.

Invariants: the identity is made once, by the migration, and never changes; the namespace is the
first that was recorded, until an operator moves the work. Used to keep apart the Temporal
namespaces of several stores; loaded by every command, so without the packages that take long.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NewType, TypeVar

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.store_rows import StoreRow
from mainspring.errors import DatabaseError

StoreId = NewType("StoreId", str)
T = TypeVar("T")

AWAKE_S = 5.0
"""Between two signs of life of a transaction that others read the same moment with."""


async def identity(db: Database) -> StoreId:
    """The database's random identity. Raises DatabaseError, also when somebody deleted the row."""
    async with db.transaction() as connection:
        ident = await connection.scalar(select(StoreRow.id))
    if ident is None:
        raise DatabaseError(
            f"database {db.name} has lost its identity: its table `store` is empty",
            remedy="restore the row from a backup: Temporal's namespace names its id",
        )
    return StoreId(ident)


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


async def clock_off_s(db: Database) -> float:
    """Seconds that this machine's clock is ahead of the store's, negative behind; to half of what
    the question takes."""
    asked_at, start = datetime.now(UTC), time.monotonic()
    server_time = await now(db)
    return (asked_at - server_time).total_seconds() + (time.monotonic() - start) / 2


async def now(db: Database) -> datetime:
    """Time by the store's clock, which decides about the time of all processes: their own may be
    wrong."""
    async with db.statement() as connection:
        return (await connection.execute(select(func.clock_timestamp()))).scalar_one()


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
