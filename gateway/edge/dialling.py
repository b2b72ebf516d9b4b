"""A gateway's end of an edge: it dials out, keeps idle lines ready, and dials again when they end.

Invariants: while the edge is there, some lines are idle, more the more are busy, and at most
MAX_LINES; an edge that is not there is dialled with growing pauses, and told once in the log; an
edge that is not this machine is reached by TLS alone. Used by the gateway's process.
"""

import asyncio
import random
import socket
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from gateway.edge.line_connection import MAX_HEADERS_BYTES, FromEdge, LineConnection
from gateway.edge.secret import is_loopback
from gateway.edge.wire import GATEWAY_HEADER, LINE, MAX_LINES, ROUTE
from gateway.server import config_of
from infra.tcp import keep_alive
from mainspring.errors import ServiceError, UsageError

MIN_IDLE = 4
DIAL_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 15.0
MAX_HEAD_BYTES = 8192

log = structlog.get_logger()


class DialFailed(ServiceError):
    """The edge cannot be reached, or takes no line of this gateway."""


@dataclass(frozen=True, slots=True)
class Edge:
    url: str
    host: str
    port: int
    is_tls: bool
    path: str


def edge_at(url: str) -> Edge:
    """Raises UsageError."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UsageError(f"edge {url}: no URL of an edge", remedy="as https://edge.example:8443")
    if parts.username or parts.query or parts.fragment:
        raise UsageError(
            f"edge {parts.scheme}://{parts.hostname}: more than scheme, host, port and path",
            remedy="put the secret into MAINSPRING_EDGE_SECRET",
        )
    is_tls = parts.scheme == "https"
    if not is_tls and not is_loopback(parts.hostname):
        raise UsageError(
            f"edge {url}: keys and the edge's secret would cross the network in the open",
            remedy="use https://",
        )
    path = parts.path.rstrip("/") + ROUTE
    return Edge(url, parts.hostname, port or (443 if is_tls else 80), is_tls, path)


class Dialling:
    """The lines of this process to one edge."""

    def __init__(self, edge: Edge, app: ASGIApp, secret: str, *, min_idle: int = MIN_IDLE) -> None:
        self._edge = edge
        self._secret = secret
        self._min_idle = min_idle
        self._config = config_of(FromEdge(app), LineConnection, max_headers_bytes=MAX_HEADERS_BYTES)
        self._state = ServerState()
        self._lines: set[LineConnection] = set()
        self._changed = asyncio.Event()
        self._tls = ssl.create_default_context() if edge.is_tls else None
        self.name = uuid.uuid4().hex
        """How the edge calls this process."""

    async def run_forever(self) -> None:
        """At its end, lines are cut: the edge gives what waits to other gateways."""
        fault, pause_s = "", FIRST_PAUSE_S
        try:
            while True:
                self._changed.clear()
                missing = self._num_missing()
                if not missing:
                    await self._changed.wait()
                    continue
                outcomes = await asyncio.gather(*(self._dial() for _ in range(missing)))
                failed = [failure for failure in outcomes if failure is not None]
                if not failed:
                    if fault or pause_s == FIRST_PAUSE_S:
                        log.info("an edge is connected", edge=self._edge.url, gateway=self.name)
                    fault, pause_s = "", 0.0
                    continue
                if failed[0].message != fault:
                    fault = failed[0].message
                    log.warning(
                        "no line to an edge",
                        edge=self._edge.url,
                        cause=fault,
                        remedy=failed[0].remedy,
                    )
                pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        finally:
            for line in list(self._lines):
                line.transport.abort()

    def _num_missing(self) -> int:
        num_idle = sum(line.is_idle for line in self._lines)
        num_busy = len(self._lines) - num_idle
        num_needed = max(self._min_idle, num_busy // 2)
        return max(0, min(num_needed - num_idle, MAX_LINES - len(self._lines)))

    async def _dial(self) -> DialFailed | None:
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._connected()
        except TimeoutError:
            return _failed("it does not answer")
        except OSError as error:
            return _failed(_why(error))
        except DialFailed as failed:
            return failed
        return None

    async def _connected(self) -> None:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        transport, _ = await loop.create_connection(
            lambda: _Asking(answered, self._request(), self._line),
            self._edge.host,
            self._edge.port,
            ssl=self._tls,
        )
        try:
            await answered
        except BaseException:
            transport.abort()
            raise
        keep_alive(transport)

    def _request(self) -> bytes:
        host = f"[{self._edge.host}]" if ":" in self._edge.host else self._edge.host
        lines = [
            f"GET {self._edge.path} HTTP/1.1",
            f"host: {host}:{self._edge.port}",
            "connection: upgrade",
            f"upgrade: {LINE.decode()}",
            f"{GATEWAY_HEADER.decode()}: {self.name}",
            *([f"authorization: Bearer {self._secret}"] if self._secret else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def _line(self) -> LineConnection:
        line = LineConnection(self._config, self._state, {}, asyncio.get_running_loop())
        line.on_change = self._on_change
        self._lines.add(line)
        return line

    def _on_change(self, line: LineConnection) -> None:
        if line.is_lost:
            self._lines.discard(line)
        self._changed.set()


class _Asking(asyncio.Protocol):
    """A connection until the edge has taken it as a line."""

    def __init__(
        self,
        answered: asyncio.Future[None],
        request: bytes,
        line: Callable[[], LineConnection],
    ) -> None:
        self._answered = answered
        self._request = request
        self._line = line
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, rest = bytes(self._head).partition(b"\r\n\r\n")
        if self._answered.done() or (not end and len(self._head) <= MAX_HEAD_BYTES):
            return
        status = head.partition(b"\r\n")[0].split(b" ")[1:2]
        if not end or status != [b"101"]:
            self._answered.set_exception(_refused(status, rest))
            return
        line = self._line()
        self._transport.set_protocol(line)
        line.connection_made(self._transport)
        self._answered.set_result(None)
        if rest:
            line.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(_failed("it closed the connection before it answered"))


def _refused(status: list[bytes], body: bytes) -> DialFailed:
    if status == [b"401"]:
        return DialFailed(
            "it does not take this gateway's secret",
            remedy="give both the same MAINSPRING_EDGE_SECRET, and start the gateway again",
        )
    answer = b" ".join(status).decode("latin-1") or "no HTTP"
    return DialFailed(
        f"it answers {answer}, expected 101: {body[:200].decode('latin-1')}",
        remedy="look whether --edge is the URL of a `mainspring worker edge`, and at its log",
    )


def _failed(why: str) -> DialFailed:
    return DialFailed(
        why, remedy="none while the edge restarts; else look at its log and at --edge"
    )


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here: {error.verify_message} (SSL_CERT_FILE)"
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    return f"it cannot be reached: {error.strerror or error}"
