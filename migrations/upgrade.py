"""Bringing a database to the schema of this program. Synchronous: for commands and start-up.

Invariant: a migration runs in one transaction under an advisory lock, so any number of processes
may upgrade at once and a killed one leaves the old schema. Inside an event loop call these through
`asyncio.to_thread`.
"""

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

import migrations
from infra.db.database import Database
from mainspring.errors import DatabaseError

_LOCK_KEY = 0x6D61696E  # "main": any constant that is not used elsewhere in the database


def upgrade(database_url: str) -> None:
    """To the newest migration. Raises DatabaseError."""
    asyncio.run(_upgrade(database_url))


def current(database_url: str) -> str | None:
    """The migration the database is at; None when it was never migrated. Raises DatabaseError."""
    return asyncio.run(_current(database_url))


def head() -> str:
    """The migration this program needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert revision is not None, "the migrations were installed without their versions"
    return revision


def alembic_config(connection: Connection | None = None) -> Config:
    """Found through the package, so that it works from a wheel and without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


async def _upgrade(database_url: str) -> None:
    # No command timeout: a migration takes as long as its data is large.
    async with (
        Database.open(database_url, pool_size=1, command_timeout_s=None) as database,
        database.transaction() as connection,
    ):
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        try:
            await connection.run_sync(lambda sync: command.upgrade(alembic_config(sync), "head"))
        except CommandError as error:
            raise DatabaseError(
                f"database {database.name} is at a migration that is unknown to this program "
                f"(it needs {head()}): {error}",
                remedy="run the version of Mainspring that made it, or use another database",
            ) from None


async def _current(database_url: str) -> str | None:
    async with Database.open(database_url, pool_size=1) as database:
        return await database.revision()
