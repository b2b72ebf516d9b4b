"""A line at the gateway's end: requests that an edge hands on, answered as any other.

Invariants: no line of text binds it to a session, so an edge can pose as no sandbox; who the client
is, and where it reached the edge, is what the edge tells, and no client can; when this gateway
ends, a line is cut and answers nothing more, so that the edge asks another one. Imported by
dialling.
"""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.edge.wire import CLIENT_HEADER, ORIGIN_HEADER, PING_HEADER, PREFIX, SILENT_S
from gateway.timed_connection import TimedConnection

MAX_HEADERS_BYTES = 68 * 1024
"""Bytes of headers that an edge takes from a client, and what it adds."""


class LineConnection(TimedConnection):
    headers_timeout_s = SILENT_S
    on_change: Callable[["LineConnection"], None] = staticmethod(lambda line: None)
    """Called when a request begins, is answered, or the line is lost."""
    is_lost = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = SILENT_S

    @property
    def is_idle(self) -> bool:
        # All lines are asked at once whether they live: that is no reason to dial more.
        return super().is_idle or any(name == PING_HEADER for name, _ in self.headers)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        super().connection_lost(exc)
        self.on_change(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.on_change(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.on_change(self)


class FromEdge:
    """The gateway's application, told what the edge knows of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        edge_headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        headers = [pair for pair in scope["headers"] if not pair[0].startswith(PREFIX)]
        scheme, _, host = edge_headers.get(ORIGIN_HEADER, "").partition("://")
        if host:
            headers = [pair for pair in headers if pair[0] != b"host"]
            headers.append((b"host", host.encode("latin-1")))
            scope = {**scope, "scheme": scheme}
        client = (edge_headers.get(CLIENT_HEADER, ""), 0)
        await self._app({**scope, "headers": headers, "client": client}, receive, send)
