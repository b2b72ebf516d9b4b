"""The connection to Postgres: a pool, one transaction at a time, and errors a person can act on.

Invariant: everything that goes wrong between this process and the server (unreachable, restarted,
disk full, another schema) leaves here as a DatabaseError that names host, port and database and
never the password. Bugs (constraint violations, bad SQL) propagate as they are.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any, Self

import asyncpg
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from infra.db.address import ServerAddress, read_address
from infra.db.faults import UPGRADE, classify
from infra.db.session import COMMAND_TIMEOUT_S, OF_A_TRANSACTION, is_pooled, open_session
from mainspring.errors import DatabaseError

NEEDED_REVISION = "0046"
"""The newest migration, without Alembic, which takes a quarter of a second to load and is needed to
migrate only. A test compares the two."""
POOL_TIMEOUT_S = 900.0
"""To wait for one of our own connections is a queue, not a fault of the server: what holds them is
bounded by the timeouts above. Only a leak lasts as long as this."""


NUM_STATEMENTS = 100
"""Statements that a direct connection keeps prepared: each has its plan once."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The migration that a database is at, and whose programs work on it."""

    revision: str
    oldest_accepted: str | None
    """Migration of the oldest program that works on it. None: it tells none, as before 0039."""

    def accepts(self, needed: str) -> bool:
        """Whether a program works on it whose newest migration is `needed`. Four digits each: their
        order is that of text."""
        if self.revision == needed:
            return True
        oldest = self.oldest_accepted
        return oldest is not None and oldest <= needed < self.revision


class Database:
    """A small pool of connections. One per process and event loop."""

    def __init__(self, engine: AsyncEngine, address: ServerAddress) -> None:
        self._engine = engine
        self._one_by_one = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.address = address
        self._is_pooled = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        pool_size: int = 8,
        command_timeout_s: float | None = COMMAND_TIMEOUT_S,
        label: str = "",
        bounds: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Connects on first use, so this never fails for a server that is down. `label`: of its
        connections in the server's list, where no pooler stands between. `bounds`: settings that
        every transaction has beside the usual ones. Raises ConfigError."""
        address = read_address(url)

        def connect() -> Any:
            session = await_only(
                open_session(
                    address, command_timeout_s=command_timeout_s, label=label, bounds=bounds
                )
            )

            async def given() -> asyncpg.Connection:
                return session

            # A pooler may give the next transaction to a session that knows no statement of ours:
            # they get no name there, and each is prepared where it is executed.
            names = map("mainspring_{}".format, count())
            return engine.dialect.loaded_dbapi.connect(
                async_creator_fn=given,
                prepared_statement_cache_size=0 if is_pooled(session) else NUM_STATEMENTS,
                prepared_statement_name_func=str if is_pooled(session) else names.__next__,
            )

        engine = create_async_engine(
            "postgresql+asyncpg://",
            creator=connect,
            pool_size=pool_size,
            pool_timeout=POOL_TIMEOUT_S,
            max_overflow=0,
        )
        event.listen(engine.sync_engine, "checkout", _refuse_closed)
        return cls(engine, address)

    @property
    def name(self) -> str:
        """host:port/database, for messages."""
        return self.address.name

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler stands between; known after the first connection."""
        return self._is_pooled

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
        Another one in the same block may be a transaction of its own. Raises DatabaseError."""
        with self._classified():
            async with self._one_by_one.connect() as connection:
                if not is_pooled(driver_connection(connection)):
                    yield connection
                    return
                # Only a transaction tells a pooler's session that it must be durable.
                await connection.execution_options(isolation_level="READ COMMITTED")
                async with connection.begin():
                    yield connection

    @contextmanager
    def _classified(self) -> Iterator[None]:
        try:
            yield
        except (
            DBAPIError,
            asyncpg.PostgresError,
            asyncpg.ClientConfigurationError,
            asyncpg.TargetServerAttributeNotMatched,
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
        """Check the store. Raises DatabaseError when the server is unreachable, its schema is older
        than this program or accepts it no more, or commits are not durable."""
        schema = await self.schema()
        if schema is None:
            raise DatabaseError(f"database {self.name} holds no Mainspring tables", remedy=UPGRADE)
        if schema.accepts(NEEDED_REVISION):
            return
        differs = f"database {self.name} is at migration {schema.revision}, this program needs "
        if schema.revision < NEEDED_REVISION:
            raise DatabaseError(f"{differs}{NEEDED_REVISION}", remedy=UPGRADE)
        oldest = schema.oldest_accepted or schema.revision
        raise DatabaseError(
            f"{differs}{NEEDED_REVISION}, and the database accepts programs of {oldest} and newer",
            remedy="install the newer version of Mainspring on this machine, then start this again",
        )

    async def check_own(self, work: str) -> None:
        """Raises DatabaseError when the schema is newer than this program: it does not know all
        tables and columns, which `work` has to take."""
        revision = await self.revision()
        if revision != NEEDED_REVISION:
            raise DatabaseError(
                f"{work} takes all columns, and database {self.name} is at migration {revision}, "
                f"this program at {NEEDED_REVISION}",
                remedy="use the newest version of Mainspring that works on this database",
            )

    async def revision(self) -> str | None:
        """The migration the database is at; None when it was never migrated."""
        schema = await self.schema()
        return None if schema is None else schema.revision

    async def schema(self) -> Schema | None:
        """The migration the database is at, and whose programs it accepts; None when it was never
        migrated."""
        async with self.transaction() as connection:
            self._is_pooled = is_pooled(driver_connection(connection))
            await self._check_durable(connection)
            return await read_schema(connection)

    async def _check_durable(self, connection: AsyncConnection) -> None:
        """Raises DatabaseError when a commit may return before it is on a disk."""
        setting = await connection.scalar(text("SELECT current_setting('synchronous_commit')"))
        if setting != OF_A_TRANSACTION["synchronous_commit"]:
            raise DatabaseError(
                f"database {self.name} has synchronous_commit={setting} though it was set to on: "
                "work would be lost when the server dies",
                remedy="a pooler or a proxy between drops what is set: take the server's own "
                "address, or `ALTER ROLE ... SET synchronous_commit = on`",
            )


async def read_schema(connection: AsyncConnection) -> Schema | None:
    """The schema as this transaction sees it; None when the database was never migrated."""
    if await connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    revision = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    if revision is None:
        return None
    # As JSON: a database before 0039 lacks the column, one before 0007 the table.
    exists = await connection.scalar(text("SELECT to_regclass('store')")) is not None
    asked = text("SELECT to_jsonb(store) ->> 'oldest_accepted' FROM store")
    return Schema(revision, await connection.scalar(asked) if exists else None)


def driver_connection(connection: AsyncConnection) -> asyncpg.Connection:
    """The driver's connection below one of the pool."""
    assert connection.sync_connection is not None
    below: Any = connection.sync_connection.connection.driver_connection
    return below


def _refuse_closed(dbapi_connection: Any, *_: object) -> None:
    """A server restart closes pooled connections: notice without a round trip, take a fresh one."""
    if dbapi_connection.driver_connection.is_closed():
        raise DisconnectionError
