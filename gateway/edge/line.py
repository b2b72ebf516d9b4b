"""One line of a gateway, at the edge's end: a client of HTTP/1.1, one request at a time.

Invariants: what is written to a line was parsed before and is written anew, so that no client can
hide a request in another; a line whose request was not answered whole is never used again; reading
stops while the client does not take what was read. Imported by the edge's lines and application.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import h11

from gateway.edge.wire import Headers
from mainspring.errors import ServiceError

PIECE_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024


class LineLost(ServiceError):
    """The connection to the gateway ended before the answer did, or carried no HTTP."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A client's request, as every gateway is to get it."""

    method: bytes
    target: bytes
    headers: Headers
    """Without lengths."""
    body: bytes

    @property
    def has_body(self) -> bool:
        return bool(self.body) or self.method in (b"POST", b"PUT", b"PATCH")


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Headers


class Line:
    def __init__(
        self, gateway: str, transport: asyncio.Transport, on_end: Callable[["Line"], None]
    ) -> None:
        """Takes the transport over from the protocol that it has."""
        loop = asyncio.get_running_loop()
        self.gateway = gateway
        self.is_lost = False
        self.idle_since = loop.time()
        self._on_end = on_end
        self._is_asked = False
        self._num_read = 0
        self._reader = asyncio.StreamReader(limit=PIECE_BYTES, loop=loop)
        self._protocol = protocol = _LineProtocol(self._reader, self._ended, lambda: self._is_asked)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
        self._http = self._anew()

    async def ask(self, request: Forwarded) -> Head:
        """Send it whole, and wait for the answer's head. Raises LineLost."""
        length = [(b"content-length", b"%d" % len(request.body))] if request.has_body else []
        head = h11.Request(
            method=request.method, target=request.target, headers=[*request.headers, *length]
        )
        self._is_asked = True
        try:
            self._write(head)
            for start in range(0, len(request.body), PIECE_BYTES):
                self._write(h11.Data(data=request.body[start : start + PIECE_BYTES]))
                await self._writer.drain()
            self._write(h11.EndOfMessage())
            await self._writer.drain()
        except (OSError, h11.LocalProtocolError) as error:
            raise self._broken(error) from error
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return Head(event.status_code, list(event.headers))
            if not isinstance(event, h11.InformationalResponse):
                raise self._broken(event)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer's body. Raises LineLost."""
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise self._broken(event)
            yield bytes(event.data)

    def is_ready(self) -> bool:
        """For another request, after the last one was answered whole."""
        done = h11.DONE
        if self.is_lost or self._http.our_state is not done or self._http.their_state is not done:
            return False
        if self._http.trailing_data[0] or self._protocol.num_bytes != self._num_read:
            return False  # an answer that was not asked for
        self._is_asked = False
        self._http = self._anew()
        self.idle_since = asyncio.get_running_loop().time()
        return True

    def close(self) -> None:
        self._writer.transport.abort()

    def _anew(self) -> h11.Connection:
        return h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    def _write(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            self._writer.write(data)

    async def _next(self) -> object:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise self._broken(error) from error
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._reader.read(PIECE_BYTES)
                self._num_read += len(data)
                self._http.receive_data(data)
            except (OSError, RuntimeError) as error:  # h11: after the end it takes nothing
                raise self._broken(error) from error

    def _broken(self, why: object) -> LineLost:
        self.close()
        return LineLost(f"the line to gateway {self.gateway} broke: {why!r}")

    def _ended(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._on_end(self)


class _LineProtocol(asyncio.StreamReaderProtocol):
    """Tells at once that the other end left, also while the line is idle. What comes without being
    asked would be taken for the next request's answer: it ends the line."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        ended: Callable[[], None],
        is_asked: Callable[[], bool],
    ) -> None:
        super().__init__(reader)
        self._ended = ended
        self._is_asked = is_asked
        self.num_bytes = 0
        """Received so far."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._line_transport = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_asked():
            assert isinstance(self._line_transport, asyncio.Transport)
            self._ended()
            self._line_transport.abort()
            return
        self.num_bytes += len(data)
        super().data_received(data)

    def eof_received(self) -> bool | None:
        self._ended()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        super().connection_lost(exc)
