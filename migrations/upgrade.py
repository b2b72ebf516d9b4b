"""Bringing a database to the schema of this program, also while processes work on it. Synchronous:
for commands and start-up.

Invariants: a migration runs in one transaction under an advisory lock, so any number of processes
may upgrade at once and a killed one leaves the old schema. Processes that work on the database wait
for its tables no longer than LOCK_TIMEOUT_S; one that the new schema would break is named, and the
schema stays. Inside an event loop call these through `asyncio.to_thread`.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

import migrations
from infra.db.connect import Connected, connected
from infra.db.database import Database, Schema, read_schema
from infra.db.tables.event_writes import Event, person, write
from mainspring.errors import DatabaseError
from mainspring.status import EventKind
from migrations.accepted import oldest_accepted

_LOCK_KEY = 0x6D61696E  # "main": any constant that is not used elsewhere in the database
LOCK_TIMEOUT_S = 0.5
"""To wait for a table in use: all other statements on it wait behind this. Below the second after
which the server looks for deadlocks, and would end the transaction of a process that works."""
PAUSE_S = 1.0
"""Between two tries: those that waited take their turn."""
TRY_FOR_S = 120.0
NUM_NAMED = 5
"""Processes named in a message."""
_TABLE_IN_USE = ("55P03", "40P01")
"""SQLSTATEs: lock_timeout, deadlock."""
_OLDEST_TRANSACTIONS = text(
    "SELECT pid, application_name, extract(epoch FROM now() - xact_start)::int AS age_s "
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND xact_start < now() - interval '1 second' ORDER BY xact_start LIMIT :number"
)


def upgrade(
    database_url: str,
    *,
    try_for_s: float = TRY_FOR_S,
    waiting: Callable[[str], None] = lambda _: None,
) -> None:
    """To the newest migration. `waiting` is told whom an upgrade waits for. Raises DatabaseError,
    also where processes run that the schema would break, or use its tables for `try_for_s`."""
    asyncio.run(_upgrade(database_url, try_for_s, waiting))


def current(database_url: str) -> str | None:
    """The migration the database is at; None when it was never migrated. Raises DatabaseError."""
    schema, _ = asyncio.run(_look(database_url))
    return None if schema is None else schema.revision


def look(database_url: str) -> tuple[Schema | None, list[Connected]]:
    """The database's schema, and the processes that are connected to it. Raises DatabaseError."""
    return asyncio.run(_look(database_url))


def head() -> str:
    """The migration this program needs."""
    revision = _scripts().get_current_head()
    assert revision is not None, "the migrations were installed without their versions"
    return revision


def oldest() -> str:
    """Migration of the oldest program that works on the schema of this one."""
    return oldest_accepted(_scripts(), head())


def alembic_config(connection: Connection | None = None) -> Config:
    """Found through the package, so that it works from a wheel and without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(alembic_config())


async def _look(database_url: str) -> tuple[Schema | None, list[Connected]]:
    async with Database.open(database_url, pool_size=1) as database:
        schema = await database.schema()
        async with database.statement() as connection:
            return schema, await connected(connection)


async def _upgrade(url: str, try_for_s: float, waiting: Callable[[str], None]) -> None:
    deadline = time.monotonic() + try_for_s
    told = ""
    # No command timeout: a migration takes as long as its data is large.
    async with Database.open(url, pool_size=1, command_timeout_s=None) as database:
        while True:
            try:
                async with database.transaction() as connection:
                    await _upgrade_once(database.name, connection)
                return
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _TABLE_IN_USE:
                    raise
            users = await _users(database)
            if time.monotonic() >= deadline:
                raise DatabaseError(
                    f"database {database.name} was not upgraded: {users} for {try_for_s:.0f} s",
                    remedy="repeat `mainspring db upgrade` when that has ended, or end it with "
                    "`SELECT pg_terminate_backend(PID)`; nothing was changed",
                )
            if users != told:
                waiting(f"{users}; trying again for up to {try_for_s:.0f} s")
            told = users
            await asyncio.sleep(PAUSE_S)


async def _upgrade_once(name: str, connection: AsyncConnection) -> None:
    """Raises DatabaseError, and DBAPIError when a table is in use."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    schema, needed = await read_schema(connection), head()
    if schema is not None:
        if schema.accepts(needed):
            return
        if schema.revision > needed:
            raise DatabaseError(
                f"database {name} is at migration {schema.revision}, which is unknown to this "
                f"program (it needs {needed})",
                remedy="run the version of Mainspring that made it, or use another database",
            )
        _refuse_broken(name, schema.revision, await connected(connection))
    timeout_ms = f"{LOCK_TIMEOUT_S * 1000:.0f}"
    await connection.execute(text(f"SET LOCAL lock_timeout = {timeout_ms}"))
    await connection.run_sync(lambda sync: command.upgrade(alembic_config(sync), "head"))
    if schema is not None:
        words = f"database upgraded from migration {schema.revision} to {needed}"
        await write(connection, Event(EventKind.STORE_UPGRADED, "store", words, by=person()))


def _refuse_broken(name: str, before: str, processes: list[Connected]) -> None:
    """Raises DatabaseError when processes run that the newest schema does not accept. One that
    names no migration is of a version that needed exactly the schema of now."""
    accepted = oldest()
    broken = [process for process in processes if (process.schema or before) < accepted]
    if broken:
        raise DatabaseError(
            f"database {name} was not upgraded: {len(broken)} processes of an older version use "
            f"it, and migration {head()} accepts {accepted} and newer: {_named(broken)}",
            remedy="stop these processes, run `mainspring db upgrade`, then start the new version",
        )


def _named(processes: list[Connected]) -> str:
    named = ", ".join(str(process) for process in processes[:NUM_NAMED])
    return named + (" ..." if len(processes) > NUM_NAMED else "")


async def _users(database: Database) -> str:
    """The transactions that an upgrade waits for, the oldest first."""
    async with database.statement() as connection:
        rows = (await connection.execute(_OLDEST_TRANSACTIONS, {"number": NUM_NAMED})).all()
    if not rows:
        return "its tables are in use"
    named = (
        f"{row.application_name or 'a session'} (PID {row.pid}) since {row.age_s} s" for row in rows
    )
    return f"its tables are in use by {', '.join(named)}"
