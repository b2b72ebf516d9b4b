"""One session with the server: connected as its URL tells, durable, and known from a pooler's.

Invariants: a commit is on the server's disk when it returns, whatever the server or a pooler
prefers otherwise; a transaction whose process stands still loses its locks. On a direct connection
both are set once; through a pooler, which gives each transaction any session, they travel in the
message that begins it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import asyncpg

from infra.db.address import ServerAddress
from infra.tcp import KeepAlive, keep_alive
from mainspring.protocol.timeouts import (
    FROZEN_TRANSACTION_S,
    PROBE_EVERY_S,
    PROBE_IDLE_S,
    PROBES_LOST,
    SILENT_PEER_S,
)

COMMAND_TIMEOUT_S = 120.0
"""A host that vanished without a goodbye must not hold a caller forever."""
OF_A_TRANSACTION = {
    # Temporal continues as soon as a write returns: by then it must survive the server's death.
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": f"{FROZEN_TRANSACTION_S:.0f}s",
}
READ_ONLY = MappingProxyType({"default_transaction_read_only": "on"})
"""Bounds of a session that must change nothing."""
OF_A_CONNECTION = {
    "tcp_keepalives_idle": f"{PROBE_IDLE_S:.0f}",
    "tcp_keepalives_interval": f"{PROBE_EVERY_S:.0f}",
    "tcp_keepalives_count": f"{PROBES_LOST}",
    "tcp_user_timeout": f"{SILENT_PEER_S:.0f}s",
}


def _set_local(settings: Mapping[str, str]) -> str:
    return "".join(f" SET LOCAL {name} = '{value}';" for name, value in settings.items())


_SET_LOCAL = _set_local(OF_A_TRANSACTION)


class ServerSession(asyncpg.Connection):
    pooled = False
    """A pooler stands between: what is set, prepared or listened to may be another session's."""
    bounds: Mapping[str, str] = MappingProxyType({})
    """Settings that its transactions have beside."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """As asyncpg; through a pooler what a transaction needs travels with its BEGIN."""
        if self.pooled and query.startswith("BEGIN"):
            query += _SET_LOCAL + _set_local(self.bounds)
        return await super().execute(query, *args, timeout=timeout)

    async def set_up(
        self, wanted_alive: KeepAlive, label: str, bounds: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Find out whether a pooler stands between, and set what outlasts a transaction if none.
        `label`: what the server lists the connection as; empty: as the address has it."""
        self.bounds = bounds
        link: Any = self
        keep_alive(link._transport, wanted_alive)  # asyncpg has no public way to it
        # A pooler makes up the process id that it tells: cancelling goes through it. One message
        # asks and sets. A simple query: it needs no statement, which a pooler may lose.
        settings = {**OF_A_TRANSACTION, **OF_A_CONNECTION, **bounds}
        if label:
            settings["application_name"] = label.replace("'", "")
        sets = ", ".join(
            f"set_config('{name}', '{value}', false)" for name, value in settings.items()
        )
        answer = await self._simple(
            f"SELECT {sets} WHERE pg_backend_pid() = {self.get_server_pid()}"
        )
        self.pooled = answer == "SELECT 0"

    async def _simple(self, query: str) -> str:
        return await asyncpg.Connection.execute(self, query)


CLOSED_AT_LOGIN = "the connection was closed during the log-in"


async def open_session(
    address: ServerAddress,
    *,
    command_timeout_s: float | None = COMMAND_TIMEOUT_S,
    label: str = "",
    bounds: Mapping[str, str] = MappingProxyType({}),
) -> ServerSession:
    """Connect to the first of the hosts that can be used. `bounds`: settings of all its
    transactions, beside those that each process has. Raises what asyncpg raises."""
    last: Exception | None = None
    for host, port in address.tried:
        try:
            session = await asyncpg.connect(
                host=host,
                port=port,
                connection_class=ServerSession,
                command_timeout=command_timeout_s,
                # Of the driver's own few statements, which a pooler would lose.
                statement_cache_size=0,
                **address.keywords(),
            )
        except _OTHER_HOST as error:
            last = error
            continue
        except asyncpg.ConnectionDoesNotExistError:
            last = ConnectionError(CLOSED_AT_LOGIN)
            continue
        try:
            await session.set_up(address.keep_alive, label if address.is_unnamed else "", bounds)
        except BaseException:
            session.terminate()
            raise
        return session
    assert last is not None
    raise last


_OTHER_HOST = (
    OSError,
    TimeoutError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.CannotConnectNowError,
)
"""Errors after which the next host may be the right one."""


def is_pooled(driver_connection: Any) -> bool:
    """Whether a connection of the pool goes through a pooler."""
    # asyncpg takes every connection for an instance of every subclass.
    return getattr(driver_connection, "pooled", False)
