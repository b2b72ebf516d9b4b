"""The store itself: its identity, the Temporal namespace of its work, whose turn it is to sweep it.

Invariants: the identity is made once, by the migration, and never changes; the namespace is the
first that was recorded, until an operator moves the work; of any number of processes that ask for a
turn within an interval one gets it, and while it holds the turn no other does, unless it stands
still. Used to keep apart
the Temporal namespaces of several stores, and by the sweep.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import NewType

from sqlalchemy import func, or_, select, update

from infra.db.database import Database
from infra.db.leases import SWEEP, LeaseHeld, ProcessLease
from infra.db.tables.models import StoreRow
from mainspring.errors import DatabaseError

StoreId = NewType("StoreId", str)


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
    the block ends, and counts as taken only when it ends without an error. Raises LeaseLost."""
    async with AsyncExitStack() as turn:
        mine = await _is_due(db, every)
        if mine:
            try:
                await turn.enter_async_context(ProcessLease(db, SWEEP).held())
                mine = await _is_due(db, every)  # another one may have ended its turn just now
            except LeaseHeld:
                mine = False
        yield mine
        if mine:
            async with db.transaction() as connection:
                await connection.execute(update(StoreRow).values(swept_at=func.clock_timestamp()))


async def _is_due(db: Database, every: timedelta) -> bool:
    was_long_ago = or_(StoreRow.swept_at.is_(None), StoreRow.swept_at < func.now() - every)
    async with db.statement() as connection:
        return await connection.scalar(select(StoreRow.id).where(was_long_ago)) is not None


async def clock_off_s(db: Database) -> float:
    """Seconds that this machine's clock is ahead of the store's, negative behind; to half of what
    the question takes."""
    asked, begun = datetime.now(UTC), time.monotonic()
    told = await now(db)
    return (asked - told).total_seconds() + (time.monotonic() - begun) / 2


async def now(db: Database) -> datetime:
    """Time by the store's clock, which decides about the time of all processes: their own may be
    wrong."""
    async with db.statement() as connection:
        return (await connection.execute(select(func.clock_timestamp()))).scalar_one()
