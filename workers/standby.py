"""A trainer that waits for the lease with everything ready: Ray, and processes for the ranks that
have imported torch and Megatron.

Of the time after a trainer's death most is such imports. Invariants: only the lease decides who
trains, so a standby reads and writes nothing of the campaign; it begins to prepare when another
trainer has worked for a while, and then takes no time from one that starts; while Ray is being
started nothing else is asked of it. Whichever process waits is the standby: one that was taken
becomes the trainer, and the next one that starts waits. Used by `workers.trainer`.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import trainers
from infra.db.training.trainers import TrainerLease
from mainspring.config.any_run import ranks_of
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from workers import trainer_lease

SETTLED_S = 15.0
"""After a takeover the new owner loads the newest version, and repeats the step that was lost."""
LOOK_S = 1.0
CHECK_S = 5.0
"""Between two looks at Ray's servers."""

log = structlog.get_logger()


class Warmed(Protocol):
    """See `trainer.process.driver.TrainerDriver`; these block, the first one for seconds."""

    def warm(self, config: CampaignConfig) -> None: ...

    def is_warm(self) -> bool: ...

    def check(self) -> None: ...


class Standby:
    def __init__(self, db: Database, campaign: CampaignId, ranks: Warmed) -> None:
        self._db = db
        self._campaign = campaign
        self._ranks = ranks
        self._warming: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Get ready, and watch over it. Returns never. Raises TrainerLost and DeviceMissing."""
        while (config := await self._settled()) is None:
            await asyncio.sleep(LOOK_S)
        self._warming = asyncio.ensure_future(asyncio.to_thread(self._ranks.warm, config))
        await asyncio.shield(self._warming)
        while not self._ranks.is_warm():
            await asyncio.sleep(LOOK_S)
        log.info("stands by", campaign=self._campaign)
        while True:
            self._ranks.check()
            await asyncio.sleep(CHECK_S)

    async def finish(self) -> None:
        """Return once nothing is being started any more; whether it could be started is found out
        by who uses it."""
        if self._warming is not None:
            await asyncio.wait([self._warming])

    async def _settled(self) -> CampaignConfig | None:
        """Configuration of another trainer's ranks, once it has worked for a while."""
        try:
            holder = await trainers.holder(self._db, self._campaign)
            if holder is None or holder.released:
                return None
            if holder.held_s < SETTLED_S:
                return None
            return ranks_of((await campaigns.get(self._db, self._campaign)).config)
        except DatabaseError:
            return None  # away for now


async def wait_for_lease(
    db: Database,
    campaign: CampaignId,
    look: Callable[[], None],
    stop: asyncio.Event,
    standby: Standby | None,
) -> TrainerLease | None:
    """The campaign's lease; None when `stop` is set before. `look` is called meanwhile and may
    raise. With `standby` that gets ready meanwhile. Raises what these do."""
    taking = asyncio.create_task(trainer_lease.take(db, campaign, look))
    stopped = asyncio.create_task(stop.wait())
    beside = [asyncio.create_task(standby.run())] if standby is not None else []
    try:
        await asyncio.wait([taking, stopped, *beside], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            return taking.result()
        for task in beside:
            if task.done():
                task.result()
        return None
    finally:
        for task in (taking, stopped, *beside):
            task.cancel()
        await asyncio.wait([taking, stopped, *beside])
        if standby is not None:
            await standby.finish()
