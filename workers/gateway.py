"""The gateway's process: HTTP for programs and for agents outside, in front of Postgres and
Temporal. Run any number.

It holds nothing: a gateway that dies leaves requests that clients ask again, of any other.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from gateway.app import make_app
from gateway.durable import DurableAnswers
from gateway.edge.dialling import Dialling, Edge, edge_at
from gateway.edge.secret import edge_secret
from gateway.metered import Metered
from gateway.server import Tls, serve
from gateway.sessions.session_desk import SessionDesk
from infra.db.cache import FactCache
from infra.db.connect import PoolRole, open_database
from infra.db.listening import Notices
from infra.db.programs.model_requests import CHANNEL
from infra.gateway_addresses import announced
from infra.log_setup import set_up
from infra.policy.serving import ServedCampaigns, serve_over_http
from infra.tracking import telemetry
from mainspring.config.settings import Settings, load_settings
from workers.polling import run_worker
from workers.service_link import ServiceLink

log = structlog.get_logger()


def main(
    home: Path | None, host: str, port: int, tls: Tls | None, edges: Sequence[str] = ()
) -> None:
    """`edges`: URLs to dial out to; none: those of the settings. Raises UsageError."""
    settings = load_settings(home)
    urls = edges or [url.strip() for url in settings.edges.split(",") if url.strip()]
    dialled = [edge_at(url) for url in urls]
    set_up(settings.log_format)
    telemetry.begin("gateway")
    run_worker(_run(settings, host, port, tls, dialled, edge_secret(settings)))


async def _run(
    settings: Settings,
    host: str,
    port: int,
    tls: Tls | None,
    edges: Sequence[Edge],
    secret: str,
) -> None:
    async with open_database(settings, PoolRole.GATEWAY) as db:
        link = await ServiceLink.open(settings, db)
        over_http = partial(serve_over_http, api_key=settings.policy_api_key)
        served = ServedCampaigns(db, over_http)
        notices = Notices(settings.session_url, CHANNEL)
        cache = FactCache(db)
        desk = SessionDesk(db, link.client, cache)
        answers = DurableAnswers(db, link.client, cache, notices, served)
        app = Metered(make_app(answers, desk), link.meter)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        linked = asyncio.create_task(link.run_forever())
        stopped = asyncio.create_task(stop.wait())
        ends = [linked, stopped]
        try:
            async with notices.listening(), serve(app, host, port, tls=tls) as at:
                address = f"tls://{at.host}:{at.port}" if tls else f"{at.host}:{at.port}"
                with announced(settings.home, os.getpid(), address):
                    link.announce("gateway", at.url)
                    for edge in edges:
                        dialling = Dialling(edge, app, secret)
                        ends.append(asyncio.create_task(dialling.run_forever()))
                    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                    # First of all, so that an edge gives what waits here to other gateways.
                    for task in ends[2:]:
                        task.cancel()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await served.close()
