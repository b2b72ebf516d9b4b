"""An edge in this process, and gateways with a script that dial out to it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted_answers import Script
from starlette.types import ASGIApp

from gateway.app import make_app
from gateway.edge.app import make_edge
from gateway.edge.arriving import Arrivals, arriving
from gateway.edge.dialling import Dialling, edge_at
from gateway.edge.lines import Lines
from gateway.server import Address, Bounds, Tls, serve
from tests.edge_process import SECRET, Process, process
from tests.waiting import until

SCRIPTED = Path(__file__).with_name("scripted_gateway.py")


@dataclass(slots=True)
class HereEdge:
    at: Address
    lines: Lines


@asynccontextmanager
async def edge_here(
    secret: str = SECRET, tls: Tls | None = None, bounds: Bounds | None = None, **options: Any
) -> AsyncIterator[HereEdge]:
    lines = Lines()
    tending = asyncio.create_task(lines.tend_forever())
    bounds = bounds or Bounds(shutdown_timeout_s=1)
    protocol = arriving(Arrivals(lines, secret))
    try:
        app = make_edge(lines, **options)
        async with serve(app, tls=tls, bounds=bounds, protocol=protocol) as at:
            yield HereEdge(at, lines)
    finally:
        tending.cancel()
        lines.close()


@asynccontextmanager
async def dialled(
    url: str, script: Script, secret: str = SECRET, *, keep_alive_s: float = 15.0
) -> AsyncIterator[Dialling]:
    """A gateway of this process; at its end its lines are cut."""
    async with dialled_app(url, make_app(script, keep_alive_s=keep_alive_s), secret) as dialling:
        yield dialling


@asynccontextmanager
async def dialled_app(url: str, app: ASGIApp, secret: str = SECRET) -> AsyncIterator[Dialling]:
    dialling = Dialling(edge_at(url), app, secret)
    running = asyncio.create_task(dialling.run_forever())
    try:
        yield dialling
    finally:
        running.cancel()
        await asyncio.wait({running})


@asynccontextmanager
async def edge_and_gateway(script: Script, **options: Any) -> AsyncIterator[HereEdge]:
    async with edge_here(**options) as edge, dialled(edge.at.url, script):
        await until(lambda: edge.lines.num_gateways == 1)
        yield edge


@contextmanager
def scripted_process(folder: Path, url: str, mode: str) -> Iterator[Process]:
    """With a script; see `scripted_gateway`."""
    with process(folder, str(SCRIPTED), url, mode) as gateway:
        yield gateway
