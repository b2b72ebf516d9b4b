"""Opening the configured database and refusing one that is not fit: missing, at another migration,
or behind a pooler that gives sessions away; what it records of the settings."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from infra.db.address import read_address
from infra.db.database import Database
from infra.db.listening import prove_notices
from infra.db.store import namespace
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError

T = TypeVar("T")


@asynccontextmanager
async def open_database(settings: Settings, *, pool_size: int = 8) -> AsyncIterator[Database]:
    """A checked Database, closed at the end. Raises DatabaseError."""
    if not settings.database_url:
        raise DatabaseError(
            f"no database is configured and none is recorded in {settings.stack_file}",
            remedy="run `mainspring up`, or set MAINSPRING_DATABASE_URL=postgresql://...",
        )
    async with Database.open(settings.database_url, pool_size=pool_size) as db:
        await db.check()
        await _check_sessions(settings, db)
        yield db


async def _check_sessions(settings: Settings, db: Database) -> None:
    """Raises DatabaseError when nothing leads to a session of the server, which LISTEN needs."""
    direct = settings.database_direct_url
    if not (db.is_pooled or direct):
        return
    if await prove_notices(direct or settings.database_url, db):
        return
    if not direct:
        raise DatabaseError(
            f"database {db.name} is a pooler in transaction mode, which loses LISTEN",
            remedy="set MAINSPRING_DATABASE_DIRECT_URL to the server's own postgresql:// URL, for "
            "every process; or set the pooler's pool_mode to session",
        )
    raise DatabaseError(
        f"MAINSPRING_DATABASE_DIRECT_URL leads to {read_address(direct).name}, which does not hear "
        f"what is told to {db.name}: it is another database, or a pooler in transaction mode",
        remedy="set it to the own address of the server that the pooler leads to",
    )


async def with_recorded_namespace(settings: Settings, db: Database) -> Settings:
    """The settings with the Temporal namespace that the store's work is in: where links lead.
    Raises DatabaseError."""
    recorded = await namespace(db)
    return settings.in_namespace(recorded) if recorded else settings


async def with_database(home: Path | None, call: Callable[[Database], Awaitable[T]]) -> T:
    """Run what a command reads or writes in the store alone. Raises DatabaseError."""
    async with open_database(load_settings(home)) as db:
        return await call(db)
