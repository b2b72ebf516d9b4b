"""The gateway's HTTP server: one address, any number of sessions.

`serve` is used by the gateway's worker, the embedded stack and tests. What it cuts when it ends is
asked again by clients, of any gateway: answers are stored.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gateway.connection import MAX_CONNECTIONS, BoundConnections, Connection
from gateway.timed_connection import HEADERS_TIMEOUT_S, TimedConnection
from infra.tcp import listen
from mainspring.errors import ServiceError

MAX_HEADERS_BYTES = 64 * 1024
KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none is closed under a request."""
SHUTDOWN_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Bounds:
    max_connections: int = MAX_CONNECTIONS
    """Connections of one session."""
    headers_timeout_s: float = HEADERS_TIMEOUT_S
    shutdown_timeout_s: int = SHUTDOWN_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    url: str


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they belong to the process around it


@asynccontextmanager
async def serve(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: Tls | None = None,
    bounds: Bounds | None = None,
    protocol: type[TimedConnection] | None = None,
) -> AsyncIterator[Address]:
    """Port 0 takes a free one. `protocol`: of each connection, when not one that nodes may bind.
    Raises ServiceError when it cannot listen."""
    bounds = bounds or Bounds()
    listener = listen(host, port, at_once=True)
    server = _Server(config_of(app, protocol or _bound(bounds), tls, bounds))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _started(server, running)
        bound_port = listener.getsockname()[1]
        scheme = "https" if tls else "http"
        name = f"[{host}]" if ":" in host else host
        yield Address(host, bound_port, f"{scheme}://{name}:{bound_port}")
    finally:
        server.should_exit = True
        await running
        listener.close()


def _bound(bounds: Bounds) -> type[TimedConnection]:
    class Bounded(Connection):
        bound = BoundConnections(bounds.max_connections)
        headers_timeout_s = bounds.headers_timeout_s

    return Bounded


def config_of(
    app: ASGIApp,
    protocol: type[TimedConnection],
    tls: Tls | None = None,
    bounds: Bounds | None = None,
    *,
    max_headers_bytes: int = MAX_HEADERS_BYTES,
) -> uvicorn.Config:
    bounds = bounds or Bounds()
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_level="error",  # bad HTTP is a warning for each request
        access_log=False,  # paths have keys
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=bounds.shutdown_timeout_s,
        h11_max_incomplete_event_size=max_headers_bytes,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )


async def _started(server: uvicorn.Server, running: asyncio.Task[None]) -> None:
    while not server.started:
        if running.done():
            running.result()
            raise ServiceError("the gateway's server ended before it listened")
        await asyncio.sleep(0.01)
