"""A stored run of any kind, from its start to its true end, with the processes a command brings.

Invariants: the processes come first, so that what an earlier run left in Temporal can end while the
start waits for it; the command leaves when nothing of the run lives any more (`still_alive`).
Imported by what trains, measures and verifies from a command.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from temporalio.client import Client

from cli.operations.machine.fleet import ONE_THREAD, Fleet, Member, Told, keep_until
from cli.operations.machine.process_ends import ProcessEnd
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.still_alive import Ending
from cli.operations.runs.watch import RunWatch
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.db.runs.events import Event
from infra.db.runs.late_events import LateEvents
from infra.stack import viewer_address
from mainspring.config.settings import Settings
from mainspring.errors import ConfigError
from mainspring.ids import CampaignId
from mainspring.status import EventKind

METRICS_PORTS = ("trainer", "trainer-2", "rollout", "sandbox", "gateway")
"""Members that answer Prometheus, in the order of their ports."""
MAX_PORT = 65_535
VIEWER_LOOK_S = 0.5


async def run_to_end(
    db: Database,
    client: Client,
    campaign: CampaignId,
    members: Sequence[Member],
    settings: Settings,
    say: Callable[[str], None],
    *,
    for_a_program: bool = False,
    watching: type[RunWatch] = RunWatch,
) -> CampaignRecord:
    """How it ended; `watching` shows it meanwhile. Raises MainspringErrors; the run itself may have
    failed without one."""
    logs, link = settings.home / "logs", settings.temporal_link
    members = with_metrics(members, settings.metrics_address)
    is_viewed = bool(members) and settings.view and not for_a_program
    if is_viewed:
        members += _viewer(settings)
    late = LateEvents(db)

    def tell(kind: EventKind, subject: str, text: str) -> None:
        late.tell(Event(kind, subject, text, campaign))

    def restarted(end: ProcessEnd) -> None:
        say(f"{end}: started again")
        text = f"{end.name} ended: {end.cause} ({end.how}); started again"
        tell(EventKind.PROCESS_RESTARTED, end.name, text)

    fleet = Fleet(members, logs, restarted)
    watch = watching(
        db,
        client,
        campaign,
        link,
        on_stderr=for_a_program,
        logs=logs if members else None,
        home=settings.home,
    )
    async with late, fleet, AsyncExitStack() as beside:
        if members:
            say(f"started {', '.join(fleet.members)}; logs in {logs}")
        if is_viewed:
            telling = asyncio.create_task(_tell_of_viewer(settings.home, campaign, say))
            beside.callback(telling.cancel)
        await _start(db, client, campaign, fleet, settings, say, tell)
        while True:
            async with watch:
                await keep_until(watch.has_ended, fleet, settings.home, say, tell)
            ending = Ending(db, client, campaign, say)
            await keep_until(ending.is_over, fleet, settings.home, say, tell)
            record = await campaigns.get(db, campaign)
            if record.status in campaigns.ENDS:  # else somebody started it again just now
                return record


def _viewer(settings: Settings) -> list[Member]:
    """None where one answers for this home folder already."""
    if viewer_address.found(settings.home) is not None:
        return []
    arguments = ["view", "--home", str(settings.home)]
    return [Member("view", arguments, environment=dict(ONE_THREAD), is_needed=False)]


async def _tell_of_viewer(home: Path, campaign: CampaignId, say: Callable[[str], None]) -> None:
    """Once it answers: its port follows from what is free."""
    while (page := viewer_address.page_of(home, "c", campaign)) is None:
        await asyncio.sleep(VIEWER_LOOK_S)
    say(f"viewer {page}")


def with_metrics(members: Sequence[Member], address: str) -> list[Member]:
    """The members, each answering Prometheus at its own port, counted from that of `address`.
    Engines answer at their own address."""
    if not address:
        return list(members)
    host, _, first = address.rpartition(":")
    if not first.isdecimal() or int(first) + len(METRICS_PORTS) > MAX_PORT:
        raise ConfigError(
            f"MAINSPRING_METRICS_ADDRESS = {address!r} is no address",
            remedy=f"give an IP address and a port of this machine with {len(METRICS_PORTS)} free "
            "ones from it on, as 127.0.0.1:9464",
        )
    for member in members:
        if member.name in METRICS_PORTS:
            port = int(first) + METRICS_PORTS.index(member.name)
            member.arguments += ["--metrics-address", f"{host}:{port}"]
    return list(members)


async def _start(
    db: Database,
    client: Client,
    campaign: CampaignId,
    fleet: Fleet,
    settings: Settings,
    say: Callable[[str], None],
    told: Told,
) -> None:
    starting = asyncio.create_task(
        launch.start(client, db, campaign, say, brings_workers=bool(fleet.members))
    )

    async def is_started() -> bool:
        return starting.done()

    try:
        await keep_until(is_started, fleet, settings.home, say, told)
        starting.result()
    finally:
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([starting])
