"""An HTTP/1.1 connection whose client has only so long for its headers.

Invariants: a client that begins a request and does not end its headers is cut after a time, also
when it sends a byte now and then; a write waits until the former was accepted. Base of the
connections of gateways, of the edge, and of a gateway's lines to an edge.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_TIMEOUT_S = 20.0
"""From the first byte of a request, or from the opening of a connection, to the end of headers."""


class TimedConnection(H11Protocol):
    headers_timeout_s = HEADERS_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A write waits until the former was accepted: so it is known what the client can have.
        # (asyncio pauses above the limit, and for TLS at it.)
        transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # A request that came behind the one that was answered may have begun.
        if self.conn.trailing_data[0]:
            self._watch_headers()

    def _should_upgrade(self) -> bool:
        return False  # and no line in the log for each client that asks

    def _watch_headers(self) -> None:
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._clear_deadline()
        else:
            self._set_deadline()

    def _set_deadline(self) -> None:
        # Not from each byte anew: a client that sends one a second would never be late.
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.headers_timeout_s, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
