"""Devices that a campaign's engines and the trainer's ranks have in turns (`trainer.colocate`).

Invariants: ranks are on the devices only while this process has both leases, of the devices and of
publishing, and every engine has given its memory away; so no process loads weights into an engine,
or has it generate, meanwhile. Ranks leave before the leases are given back, whatever happened, and
end where they cannot leave. Engines take their memory again with the next version that they are
given: after each turn one has to be published. A trainer that dies leaves engines without memory
and no lease: its next attempt finds them so, or a publish brings them back. An engine that is
started again during a turn is made to give its memory away as soon as it answers. Used by the
training activities.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import structlog
from pydantic import SecretStr

from activities.training.held_version import HeldVersion
from activities.training.trainer_backend import Progress, TrainerBackend
from infra.db import leases
from infra.db.database import Database
from infra.db.leases import ProcessLease
from infra.db.nodes import engines
from infra.db.runs import campaigns
from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.dialects.lent_memory import lend
from infra.policy.engines.wire import NothingListens, Wire
from infra.policy.serving import LOADING_S
from infra.tracking import spans
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId
from mainspring.training.step_metrics import TrainerJob

LEND_S = 120.0
"""For each request by which an engine ends its replies and gives its memory away."""
LOOK_S = 1.0
"""Between two looks for engines that were started again."""
_log = structlog.get_logger(__name__)


class SharedDevices:
    def __init__(
        self, db: Database, held: HeldVersion, backend: TrainerBackend, api_key: SecretStr
    ) -> None:
        """`api_key`: of the engines."""
        self._db = db
        self._held = held
        self._backend = backend
        self._api_key = api_key.get_secret_value()

    @asynccontextmanager
    async def by_ranks(self, job: TrainerJob, show: Progress) -> AsyncIterator[None]:
        """The turn of the ranks, where the campaign shares devices; the caller holds `in_turn`.
        Raises EngineError, EngineUnreachable, LeaseHeld."""
        if not shares(job):
            yield
            return
        campaign = job.campaign
        publishing = ProcessLease(self._db, leases.publishing(campaign), wait_s=LOADING_S)
        devices = ProcessLease(self._db, leases.devices(campaign), wait_s=LOADING_S)
        wire = Wire(LEND_S, self._api_key, dialect_of(job.config.policy.api))
        try:
            show("waiting until engines have loaded their weights")
            async with publishing.held(), devices.held():
                show("engines give their memory away")
                with spans.span("lend devices"):
                    # Not cut off: SGLang does not tell whether a request that was lost reached it.
                    await _to_its_end(self._lend(wire, campaign))
                over = asyncio.Event()
                watch = asyncio.create_task(self._lend_again(wire, campaign, over))
                try:
                    await self._held.run(self._backend.ranks.be_on_device, True)
                    yield
                finally:
                    over.set()
                    await _to_its_end(self._leave(watch))
        finally:
            await wire.aclose()

    async def _leave(self, watch: asyncio.Task[None]) -> None:
        await watch
        # In the thread of the ranks: behind what an attempt that was cancelled still computes.
        await self._held.run(self._backend.ranks.be_on_device, False)

    async def _lend(self, wire: Wire, campaign: CampaignId) -> None:
        """All engines, also those that are drained, or lost: they may hold memory as well."""
        urls = (await campaigns.get(self._db, campaign)).config.policy.engines
        fleet = await engines.members(self._db, campaign, urls)
        lending = (self._lend_one(wire, campaign, member.url) for member in fleet)
        ends = await asyncio.gather(*lending, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _lend_one(self, wire: Wire, campaign: CampaignId, url: str) -> None:
        try:
            if await lend(wire, wire.dialect, url):
                _log.info("an engine gave its memory to the trainer", campaign=campaign, engine=url)
        except NothingListens as gone:
            if not gone.has_ended:
                raise
            wire.forget(url)

    async def _lend_again(self, wire: Wire, campaign: CampaignId, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                await asyncio.wait_for(over.wait(), LOOK_S)
            except TimeoutError:
                try:
                    await self._lend(wire, campaign)
                except MainspringError as error:
                    _log.warning("engines during a step", campaign=campaign, reason=error.message)


def shares(job: TrainerJob) -> bool:
    """Whether the campaign's engines have its devices at other times; one that trains another one's
    batches has none."""
    return job.config.trainer.colocate and job.last_step is None


async def _to_its_end(work: Coroutine[None, None, None]) -> None:
    """Wait for `work` also while this is being cancelled; the cancel is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        raise cancelled
    task.result()
