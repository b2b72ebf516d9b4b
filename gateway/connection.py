"""HTTP/1.1 connections of the gateway, which a node may bind to a session.

Before the first byte of HTTP a node may write one line, `MAINSPRING KEY`: each request of that
connection is then the session's. The program in a sandbox cannot write it, because the node has
written it before it passes on what the program sends. Invariants: a line that comes later is no
HTTP and ends the connection; a program that opens connections without end, or that begins a request
and does not end its headers, holds no more than its share. Imported by the gateway's server.
"""

import re
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.keys import BOUND
from gateway.timed_connection import TimedConnection

MARK = b"MAINSPRING "
MAX_LINE_BYTES = 512
_KEY = re.compile(rb"[A-Za-z0-9._~+/=:-]{1,480}")
MAX_CONNECTIONS = 64
"""Connections of one session at one gateway."""


def preamble(key: str) -> bytes:
    """First bytes that a node writes."""
    return MARK + key.encode() + b"\r\n"


class BoundConnections:
    """Those of each session, of one server."""

    def __init__(self, max_connections: int = MAX_CONNECTIONS) -> None:
        self._max_connections = max_connections
        self._open: dict[str, list[Connection]] = {}

    def admit(self, key: str, connection: "Connection") -> bool:
        """Room is made by closing one that waits for a request, the oldest first."""
        connections = self._open.setdefault(key, [])
        if len(connections) >= self._max_connections:
            idle = next((candidate for candidate in connections if candidate.is_idle), None)
            if idle is None:
                return False
            self.drop(key, idle)
            idle.transport.close()
        self._open.setdefault(key, []).append(connection)
        return True

    def drop(self, key: str, connection: "Connection") -> None:
        connections = self._open.get(key, [])
        if connection in connections:
            connections.remove(connection)
        if not connections:
            self._open.pop(key, None)


class Connection(TimedConnection):
    bound = BoundConnections()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opening: bytearray | None = bytearray()
        """Bytes of which it is not known yet whether they are HTTP; None: it is known."""
        self._key: str | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._key is not None:
            self.bound.drop(self._key, self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._opening is not None:
            self._opening += data
            rest = self._after_preamble(bytes(self._opening))
            if rest is None:
                return
            self._opening, data = None, rest
        if data:
            super().data_received(data)
        else:
            self._watch_headers()

    def _after_preamble(self, opening: bytes) -> bytes | None:
        """The HTTP that follows. None: more must come, or the connection was closed."""
        if not opening.startswith(MARK):
            return None if MARK.startswith(opening) else opening
        line, end, rest = opening.partition(b"\r\n")
        key = line.removeprefix(MARK)
        if not end:
            if len(opening) > MAX_LINE_BYTES:
                self.transport.close()
            return None
        if not _KEY.fullmatch(key) or not self.bound.admit(key.decode(), self):
            self.transport.close()
            return None
        self._key = key.decode()
        self.app = _Binding(self.app, self._key)
        return rest


class _Binding:
    """The application, told whose connection it is."""

    def __init__(self, app: Any, key: str) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, BOUND: self._key}, receive, send)
