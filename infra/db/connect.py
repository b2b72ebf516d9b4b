"""Opening the configured database and refusing one that is missing or at another migration; what it
records of the settings."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from infra.db.database import Database
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
        yield db


async def with_recorded_namespace(settings: Settings, db: Database) -> Settings:
    """The settings with the Temporal namespace that the store's work is in: where links lead.
    Raises DatabaseError."""
    recorded = await namespace(db)
    return settings.in_namespace(recorded) if recorded else settings


async def with_database(home: Path | None, call: Callable[[Database], Awaitable[T]]) -> T:
    """Run what a command reads or writes in the store alone. Raises DatabaseError."""
    async with open_database(load_settings(home)) as db:
        return await call(db)
