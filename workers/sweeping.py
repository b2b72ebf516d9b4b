"""The sweep's clock, in every rollout worker: one of them sweeps, once a minute.

Invariants: of any number of workers one sweeps at a time, and none within `SWEEP_EVERY` of the last
sweep's end; a sweep that fails leaves its turn to the next. Its last result is the newest line
`swept` in the workers' logs.
"""

import asyncio
from datetime import datetime, timedelta

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.sweep import SweepActivities
from infra.db.database import Database
from infra.db.leases import LeaseLost, sweep_turn
from infra.db.nodes import nodes
from mainspring.errors import DatabaseError
from mainspring.ids import NodeId
from mainspring.protocol.sweep import SweepInput

SWEEP_EVERY = timedelta(minutes=1)
LOOK_EVERY_S = 15.0
"""How late a worker may see that it is time: a query each."""
TIMEOUT_S = 300.0
"""Thousands of rollouts, each looked up on its own, take seconds."""
OLD_SCHEDULE = "mainspring-sweep"
"""Schedule of versions that swept by a workflow: it stands still without workers."""

log = structlog.get_logger()


class Sweeping:
    def __init__(
        self,
        db: Database,
        client: Client,
        every: timedelta = SWEEP_EVERY,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._db = db
        self._client = client
        self._sweeper = SweepActivities(db, client)
        self._every = every
        self._look_every_s = look_every_s
        self._silent: dict[NodeId, datetime] = {}
        """Nodes that were silent at the last look."""

    async def run_forever(self) -> None:
        await self._delete_old_schedule()
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self.tell_lost_nodes()
                    await self.sweep_in_turn()
            except (DatabaseError, LeaseLost, RPCError, TimeoutError) as error:
                reason = str(error) or f"not done after {TIMEOUT_S:.0f} s"
                log.warning("the sweep failed and is tried again", reason=reason)
            await asyncio.sleep(self._look_every_s)

    async def tell_lost_nodes(self) -> None:
        """Tell of nodes that are silent at two looks: after the database was away all are, until
        they beat. Raises DatabaseError."""
        silent = await nodes.silent(self._db)
        for node, seen_at in silent.items():
            if self._silent.get(node) == seen_at:
                await nodes.tell_lost(self._db, node, seen_at)
        self._silent = silent

    async def sweep_in_turn(self) -> bool:
        """Sweep if it is time and no other worker does; whether it was. Raises DatabaseError,
        LeaseLost and RPCError."""
        async with sweep_turn(self._db, self._every) as is_mine:
            if is_mine:
                swept = await self._sweeper.sweep(SweepInput())
                changed = swept.model_dump(exclude={"num_rollouts_alive"})
                note = log.warning if any(changed.values()) else log.info
                note("swept", **swept.model_dump())
        return is_mine

    async def _delete_old_schedule(self) -> None:
        try:
            await self._client.get_schedule_handle(OLD_SCHEDULE).delete()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                log.warning(f"the schedule {OLD_SCHEDULE} stays", reason=error.message)
