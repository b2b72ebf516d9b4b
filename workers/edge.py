"""The edge's process: clients outside, and the gateways that dial out to it.

It holds nothing, reaches neither Postgres nor Temporal, and needs no state folder. An edge that
dies cuts what waits; clients ask again, and gateways dial again.
"""

import asyncio
import resource
import signal
from urllib.parse import SplitResult, urlsplit

import structlog

from gateway.edge.app import make_edge
from gateway.edge.arriving import Arrivals, arriving
from gateway.edge.lines import Lines
from gateway.edge.secret import edge_secret, refuse_open
from gateway.server import Tls, serve
from infra.log_setup import set_up
from mainspring.config.settings import configured_settings
from mainspring.errors import UsageError

log = structlog.get_logger()


def main(host: str, port: int, tls: Tls | None, public_url: str) -> None:
    """Raises UsageError and ServiceError."""
    _check_public(public_url)
    settings = configured_settings()
    set_up(settings.log_format)
    secret = edge_secret(settings)
    refuse_open(host, secret)
    _allow_open_files()
    asyncio.run(_run(host, port, tls, public_url, secret))


async def _run(host: str, port: int, tls: Tls | None, public_url: str, secret: str) -> None:
    lines = Lines()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    protocol = arriving(Arrivals(lines, secret))
    tending = asyncio.create_task(lines.tend_forever())
    stopped = asyncio.create_task(stop.wait())
    try:
        app = make_edge(lines, public_url=public_url)
        async with serve(app, host, port, tls=tls, protocol=protocol) as at:
            log.info("edge is up", url=at.url, has_secret=bool(secret))
            done, _ = await asyncio.wait([tending, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        tending.cancel()
        stopped.cancel()
        lines.close()
        await asyncio.gather(tending, stopped, return_exceptions=True)


def _check_public(url: str) -> None:
    parts = urlsplit(url)
    is_origin = parts.scheme in ("http", "https") and parts.hostname and url == _origin(parts)
    if url and not is_origin:
        raise UsageError(
            f"--public-url {url}: no scheme and host alone", remedy="as https://edge.example"
        )


def _origin(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}"


def _allow_open_files() -> None:
    """As many as this user may have: a client that waits takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
