"""Opening the configured database and refusing one that is not fit: missing, at another migration,
or behind a pooler that gives sessions away; what it records of the settings."""

import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.address import APPLICATION, read_address
from infra.db.database import NEEDED_REVISION, Database
from infra.db.session import READ_ONLY
from infra.db.store import namespace
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError

T = TypeVar("T")

_OURS = f"{APPLICATION} "
"""Labels of processes begin so; after it their role, pool, migration and number."""
_LABEL = re.compile(
    r"mainspring (?P<role>\w+) pool=\d+ ((?P<schema>\d{4}) )?(?P<pid>\d+)@(?P<host>.*)"
)
_LABELS = text(
    "SELECT DISTINCT application_name FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE :ours ORDER BY 1"
)
_CONNECTIONS = text(
    "SELECT current_setting('max_connections')::int "
    "- current_setting('superuser_reserved_connections')::int "
    "- coalesce(current_setting('reserved_connections', true)::int, 0) AS allowed, "
    "array_agg(DISTINCT application_name) FILTER (WHERE application_name LIKE :ours) AS names, "
    "count(*) FILTER (WHERE application_name NOT LIKE :ours) AS others "
    "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
"""One pool has one label, however many of its connections are open."""


class PoolRole(StrEnum):
    """Kind of a process, which tells how many connections it needs."""

    NODE = "node"
    """Beats, looks, and what its activities write: milliseconds each."""
    GATEWAY = "gateway"
    """Any number of requests, which wait without a connection; and one more, which listens."""
    ROLLOUT = "rollout"
    """A thousand activities at once. A few of these processes serve a hundred nodes."""
    TRAINER = "trainer"
    COMMAND = "command"

    @property
    def pool_size(self) -> int:
        """A hundred processes stay within 300 connections: 90 nodes, 5 rollout workers, 3 gateways,
        a trainer and its standby have 239."""
        return {PoolRole.GATEWAY: 4, PoolRole.ROLLOUT: 8}.get(self, 2)


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections of the server, by whom they are or may be taken."""

    allowed: int
    """Connections of everybody together, without those that are reserved for operators."""
    num_processes: int
    """Processes of ours that are connected to this database."""
    ours: int
    """Connections that their pools may open."""
    others: int
    """Connections that others have open now."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A process that is connected to the database, as its label tells."""

    role: str
    pid: int
    host: str
    """Cut short by the server where it is long."""
    schema: str | None
    """Newest migration that its program knows; None: one of a version before 0039."""

    def __str__(self) -> str:
        return f"{self.role} {self.pid}@{self.host} ({self.schema or 'before 0039'})"


async def connected(connection: AsyncConnection) -> list[Connected]:
    """Processes that are connected to this database, but those behind a pooler."""
    labels = (await connection.execute(_LABELS, {"ours": f"{_OURS}%"})).scalars()
    found = [match for label in labels if (match := _LABEL.fullmatch(label))]
    return [Connected(m["role"], int(m["pid"]), m["host"], m["schema"]) for m in found]


@asynccontextmanager
async def open_database(
    settings: Settings, role: PoolRole = PoolRole.COMMAND, *, pool_size: int | None = None
) -> AsyncIterator[Database]:
    """A checked Database, closed at the end. `pool_size`: of what needs another number than its
    role. Raises DatabaseError."""
    url = _configured_url(settings)
    size = pool_size or settings.database_pool or role.pool_size
    process = f"{os.getpid()}@{socket.gethostname()}"
    label = f"{_OURS}{role} pool={size} {NEEDED_REVISION} {process}"
    async with Database.open(url, pool_size=size, label=label) as db:
        await db.check()
        await _check_sessions(settings, db)
        yield db


@asynccontextmanager
async def reading_database(
    settings: Settings, *, statement_timeout_s: float, pool_size: int = 4
) -> AsyncIterator[Database]:
    """A Database that can change nothing and whose queries are ended when they take too long. It
    is not checked: its server may be down. Raises DatabaseError when none is configured."""
    process = f"{os.getpid()}@{socket.gethostname()}"
    async with Database.open(
        _configured_url(settings),
        pool_size=pool_size,
        label=f"{_OURS}{PoolRole.COMMAND} pool={pool_size} {NEEDED_REVISION} {process}",
        bounds={**READ_ONLY, "statement_timeout": f"{1000 * statement_timeout_s:.0f}"},
    ) as db:
        yield db


def _configured_url(settings: Settings) -> str:
    if not settings.database_url:
        raise DatabaseError(
            f"no database is configured and none is recorded in {settings.stack_file}",
            remedy="run `mainspring up`, or set MAINSPRING_DATABASE_URL=postgresql://...",
        )
    return settings.database_url


async def _check_sessions(settings: Settings, db: Database) -> None:
    """Raises DatabaseError when nothing leads to a session of the server, which LISTEN needs."""
    direct = settings.database_direct_url
    if not (db.is_pooled or direct):
        return
    from infra.db.listening import prove_notices  # its log's package is loaded by none but these

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


async def connections(db: Database) -> Connections:
    """Count the connections that our processes may open, and others have. Raises DatabaseError."""
    async with db.statement() as connection:
        row = (await connection.execute(_CONNECTIONS, {"ours": f"{_OURS}%"})).one()
    pools = {name: int(name.partition("pool=")[2].partition(" ")[0]) for name in row.names or ()}
    listening = sum(name.startswith(f"{_OURS}{PoolRole.GATEWAY}") for name in pools)
    return Connections(row.allowed, len(pools), sum(pools.values()) + listening, row.others)


async def with_recorded_namespace(settings: Settings, db: Database) -> Settings:
    """The settings with the Temporal namespace that the store's work is in: where links lead.
    Raises DatabaseError."""
    recorded = await namespace(db)
    return settings.in_namespace(recorded) if recorded else settings


async def with_database(home: Path | None, call: Callable[[Database], Awaitable[T]]) -> T:
    """Run what a command reads or writes in the store alone. Raises DatabaseError."""
    async with open_database(load_settings(home)) as db:
        return await call(db)
