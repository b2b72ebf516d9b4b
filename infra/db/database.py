"""The connection to Postgres: a pool, one transaction at a time, and errors a person can act on.

Invariant: everything that goes wrong between this process and the server (unreachable, restarted,
disk full, another schema) leaves here as a DatabaseError that names host, port and database and
never the password. Bugs (constraint violations, bad SQL) propagate as they are.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import asyncpg
from sqlalchemy import URL, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from mainspring.errors import ConfigError, DatabaseError

NEEDED_REVISION = "0027"
"""The newest migration, without Alembic, which takes a quarter of a second to load and is needed to
migrate only. A test compares the two."""
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 120.0
"""A host that vanished without a goodbye must not hold a caller forever."""
POOL_TIMEOUT_S = 900.0
"""To wait for one of our own connections is a queue, not a fault of the server: what holds them is
bounded by the timeouts above. Only a leak lasts as long as this."""
SERVER_SETTINGS = {
    # Temporal continues as soon as a write returns: by then it must survive the server's death.
    "synchronous_commit": "on",
    "application_name": "mainspring",
}

_DISK_FULL = "53100"
_TOO_MANY = "53300"
_UNDEFINED_TABLE = "42P01"
_UNAVAILABLE = ("08", "53", "57P", "28", "3D")
"""SQLSTATE beginnings: connection, resources, shutdown, refused log-in, no such database."""
_UPGRADE = "run `mainspring db upgrade`"


class Database:
    """A small pool of connections. One per process and event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._one_by_one = engine.execution_options(isolation_level="AUTOCOMMIT")

    @classmethod
    def open(cls, url: str, *, pool_size: int = 8) -> Self:
        """Connects on first use, so this never fails for a server that is down."""
        engine = create_async_engine(
            driver_url(url),
            pool_size=pool_size,
            pool_timeout=POOL_TIMEOUT_S,
            max_overflow=0,
            connect_args={
                "timeout": CONNECT_TIMEOUT_S,
                "command_timeout": COMMAND_TIMEOUT_S,
                "server_settings": SERVER_SETTINGS,
            },
        )
        event.listen(engine.sync_engine, "checkout", _refuse_closed)
        return cls(engine)

    @property
    def name(self) -> str:
        """host:port/database, for messages."""
        return _describe(self._engine.url)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Commits when the block ends, rolls back when it raises. Raises DatabaseError."""
        with self._classified():
            async with self._engine.begin() as connection:
                yield connection

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[AsyncConnection]:
        """For one statement, which is a transaction by itself: one round trip instead of three.
        Another one in the same block is a transaction of its own. Raises DatabaseError."""
        with self._classified():
            async with self._one_by_one.connect() as connection:
                yield connection

    @contextmanager
    def _classified(self) -> Iterator[None]:
        try:
            yield
        except (
            DBAPIError,
            asyncpg.PostgresError,
            OSError,
            TimeoutError,
            PoolTimeoutError,
        ) as error:
            raise classify(error, self.name) from error

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that reads only, and whose queries all see the store at one moment."""
        async with self.transaction() as connection:
            await connection.execute(
                text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            )
            yield connection

    async def check(self) -> None:
        """Check the store. Raises DatabaseError when the server is unreachable or the schema is
        another one."""
        found = await self.revision()
        if found is None:
            raise DatabaseError(f"database {self.name} holds no Mainspring tables", remedy=_UPGRADE)
        if found != NEEDED_REVISION:
            raise DatabaseError(
                f"database {self.name} is at migration {found}, this program needs "
                f"{NEEDED_REVISION}",
                remedy=f"{_UPGRADE}, or run the version of Mainspring that made it",
            )

    async def revision(self) -> str | None:
        """The migration the database is at; None when it was never migrated."""
        async with self.transaction() as connection:
            exists = await connection.scalar(text("SELECT to_regclass('alembic_version')"))
            if exists is None:
                return None
            return await connection.scalar(text("SELECT version_num FROM alembic_version"))


def driver_url(url: str) -> URL:
    """postgresql:// in any of its spellings, as SQLAlchemy and asyncpg want it."""
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql":
        raise ConfigError(
            "the database URL is not a postgresql:// URL",
            remedy="set MAINSPRING_DATABASE_URL to postgresql://user:password@host:port/name, "
            "or run `mainspring up`",
        )
    query = dict(parsed.query)
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    return parsed.set(drivername="postgresql+asyncpg", query=query)


def classify(error: Exception, name: str) -> Exception:
    """The DatabaseError that `error` means, or `error` itself when the fault is in the program."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None) or ""
    if state == _DISK_FULL:
        return DatabaseError(
            f"database {name}: the disk is full",
            remedy="free space on the database host; work resumes by itself",
        )
    if state == _TOO_MANY:
        return DatabaseError(
            f"database {name} has no connection left: {cause}",
            remedy="`SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1` tells who "
            "holds them; end some, or raise max_connections. Work resumes by itself",
        )
    if state == _UNDEFINED_TABLE:
        return DatabaseError(f"database {name} lacks tables: {cause}", remedy=_UPGRADE)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or isinstance(error, (OSError, PoolTimeoutError)) or state.startswith(_UNAVAILABLE):
        return DatabaseError(
            f"database {name} cannot be used: {_told(cause)}",
            remedy="check that Postgres runs there and MAINSPRING_DATABASE_URL is right, "
            "or run `mainspring up`",
        )
    return error


def _told(cause: BaseException | None) -> str:
    """A timeout has no words of its own: the server takes connections and does not answer."""
    if isinstance(cause, TimeoutError) and not str(cause):
        return "it did not answer in time; its process may stand still or be overloaded"
    return f"{type(cause).__name__}: {cause}"


def _describe(url: URL) -> str:
    host = url.host or url.query.get("host") or "localhost"
    return f"{host}:{url.port or 5432}/{url.database or url.username or ''}"


def _refuse_closed(dbapi_connection: Any, *_: object) -> None:
    """A server restart closes pooled connections: notice without a round trip, take a fresh one."""
    if dbapi_connection.driver_connection.is_closed():
        raise DisconnectionError
