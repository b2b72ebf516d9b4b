"""The trainer's lease: one process trains a campaign, the others stand aside and report for whom.

Invariants: activities are polled for only while the lease is held; an owner that can tell the time
renews it; an owner that finds itself replaced ends. A process that died on this machine holds
nothing up: it is looked for by its pid, its start and its pid namespace.
"""

import asyncio
import os
import socket
from collections.abc import Callable

import structlog

from infra.db.database import Database
from infra.db.training import trainers
from infra.db.training.trainers import TrainerLease
from infra.process_start import has_ended, this_process
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from mainspring.protocol.timeouts import LEASE_RENEW_S

LOOK_S = 1.0
"""Between two looks at the lease."""
ALIVE_LOOK_S = 0.1
"""Between two looks at its owner's process, where it is on this machine."""
SAY_EVERY_S = 60.0

log = structlog.get_logger()


async def take(
    database: Database, campaign: CampaignId, look: Callable[[], None] = lambda: None
) -> TrainerLease:
    """Wait until no other process trains the campaign. `look` is called meanwhile and may raise."""
    owner, process = f"{socket.gethostname()} pid {os.getpid()}", this_process()
    last_said: tuple[str, float] | None = None
    loop = asyncio.get_running_loop()
    while True:
        look()
        try:
            holder = await trainers.holder(database, campaign)
            # This process may have held it before it started anew.
            over = holder is not None and (holder.process == process or has_ended(holder.process))
            lease = await trainers.take(
                database,
                campaign,
                owner=owner,
                process=process,
                ended=holder.process if holder and over else None,
            )
        except DatabaseError as error:
            log.warning("lease not taken", campaign=campaign, error=error.message)
            await asyncio.sleep(LEASE_RENEW_S)
            continue
        if lease is not None:
            return lease
        if holder and (
            last_said is None
            or last_said[0] != holder.owner
            or loop.time() - last_said[1] > SAY_EVERY_S
        ):
            last_said = holder.owner, loop.time()
            log.warning(
                "waits: another trainer works for the campaign",
                campaign=campaign,
                holder=holder.owner,
                since=f"{holder.since:%Y-%m-%d %H:%M:%S}",
                epoch=holder.epoch,
            )
        await _until_ended(holder.process if holder else "", LOOK_S)


async def keep(database: Database, lease: TrainerLease) -> None:
    """Renew until cancelled. Raises TrainerFenced."""
    while True:
        try:
            await trainers.renew(database, lease.campaign, lease.epoch)
        except DatabaseError as error:
            # While the database is unreachable, no other trainer can take the lease either.
            log.warning("lease not renewed", campaign=lease.campaign, error=error.message)
        await asyncio.sleep(LEASE_RENEW_S)


async def _until_ended(process: str, longest_s: float) -> None:
    for _ in range(round(longest_s / ALIVE_LOOK_S)):
        await asyncio.sleep(ALIVE_LOOK_S)
        if process and has_ended(process):
            return
