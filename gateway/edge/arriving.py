"""Connections that reach an edge: of clients, and of gateways, which become lines.

Invariants: a line is given to who has the secret alone, and no other byte of such a connection is
read before; unlike a gateway, an edge has no line of text that binds a connection to a session.
Imported by the edge's server.
"""

import asyncio
import json
import re

import h11
import structlog

from gateway.edge.lines import Lines
from gateway.edge.secret import is_same
from gateway.edge.wire import GATEWAY_HEADER, LINE, MAX_LINES, ROUTE
from gateway.sessions.wrong_keys import WrongKeys
from gateway.timed_connection import TimedConnection
from infra.tcp import keep_alive

MAX_CONNECTIONS = 4096
"""Connections of clients and gateways together."""
_NAME = re.compile(rb"[0-9a-zA-Z._-]{1,64}")
_ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: " + LINE + b"\r\n\r\n"
)

log = structlog.get_logger()


class Arrivals:
    """Connections that arrive at one edge: who may become a line."""

    def __init__(self, lines: Lines, secret: str) -> None:
        self._lines = lines
        self._secret = secret
        self._wrong = WrongKeys()

    def refusal(self, address: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """Status and reason; None: the connection is a gateway's."""
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if self._secret:
            if wait_s := self._wrong.blocked_s(address, key):
                return 429, f"too many wrong secrets came from this address: wait {wait_s:.0f} s"
            if scheme.lower() != "bearer" or not is_same(key.strip(), self._secret):
                self._wrong.was_wrong(address)
                return 401, "this is not the edge's secret"
            self._wrong.was_right(key)
        name = headers.get(GATEWAY_HEADER, b"")
        if not _NAME.fullmatch(name):
            return 400, f"the header {GATEWAY_HEADER.decode()} does not name a gateway"
        if not self._lines.may_add(name.decode()):
            return 409, f"this edge takes no more: a gateway has at most {MAX_LINES} connections"
        return None

    def add(self, headers: dict[bytes, bytes], transport: asyncio.Transport) -> None:
        self._lines.add(headers[GATEWAY_HEADER].decode(), transport)


def arriving(arrivals: Arrivals, max_connections: int = MAX_CONNECTIONS) -> type[TimedConnection]:
    """The class of an edge's connections."""

    class ForThisEdge(Arriving):
        pass

    ForThisEdge.arrivals = arrivals
    ForThisEdge.max_connections = max_connections
    return ForThisEdge


class Arriving(TimedConnection):
    arrivals: Arrivals
    max_connections: int
    _became_line = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()

    def _should_upgrade(self) -> bool:
        is_route = self.scope["path"].endswith(ROUTE)
        return is_route and self._get_upgrade() == LINE

    def _watch_headers(self) -> None:
        if not self._became_line:
            super()._watch_headers()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Handler that the server calls for each upgrade that it is to make."""
        headers = dict(self.headers)
        address = self.client[0] if self.client else ""
        refusal = self.arrivals.refusal(address, headers)
        if refusal is None and not isinstance(self.conn.next_event(), h11.EndOfMessage):
            refusal = 400, "a gateway sends nothing before it is answered"
        if refusal is not None:
            log.warning("refused a gateway", address=address, status=refusal[0], cause=refusal[1])
            self._refuse(*refusal)
            return
        self._became_line = True
        self.connections.discard(self)
        self._clear_deadline()
        self._unset_keepalive_if_required()
        keep_alive(self.transport)
        self.transport.set_write_buffer_limits()
        self.transport.write(_ACCEPTED)
        self.arrivals.add(headers, self.transport)

    def _refuse(self, status: int, reason: str) -> None:
        body = json.dumps({"error": reason}).encode()
        fields = f"content-type: application/json\r\ncontent-length: {len(body)}"
        head = f"HTTP/1.1 {status} Refused\r\n{fields}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
