"""Opening the configured database and refusing one that is missing or at another migration."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from infra.db.database import Database
from mainspring.errors import DatabaseError
from mainspring.settings import Settings


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
