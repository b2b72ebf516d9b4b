"""Who loads weights into a campaign's engines: one process at a time.

Invariant: the lease is an advisory lock of a transaction, so it ends with the process or connection
that holds it, whatever killed them. In one process any number of loads share it. Two processes that
load at once would do no harm to the weights, but each would pause the engines of the other.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from sqlalchemy import func, select

from infra.db.database import Database
from mainspring.errors import EngineError
from mainspring.ids import CampaignId

LOCK_CLASS = 0x6D73_7075
"""First key of the advisory lock, apart from those of other programs on the same server."""
LOOK_S = 0.2
WAIT_S = 900.0
"""For another process, longer than the largest weights take to load from a disk."""


class PublishingLease:
    def __init__(self, db: Database, campaign: CampaignId) -> None:
        self._db = db
        self._campaign = campaign
        self._entering = asyncio.Lock()
        self._num_holders = 0
        self._transaction = AsyncExitStack()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Raises EngineError when another process holds it for WAIT_S, DatabaseError."""
        async with self._entering:
            if not self._num_holders:
                self._transaction = await self._taken()
            self._num_holders += 1
        try:
            yield
        finally:
            # No await before the count is right: a cancelled load must not keep the lease.
            self._num_holders -= 1
            if not self._num_holders:
                await asyncio.shield(self._transaction.aclose())

    async def _taken(self) -> AsyncExitStack:
        deadline = time.monotonic() + WAIT_S
        key = func.hashtext(self._campaign)
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._db.transaction())
            while not await connection.scalar(
                select(func.pg_try_advisory_xact_lock(LOCK_CLASS, key))
            ):
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"campaign {self._campaign}: another process has been loading weights into "
                        f"its engines for {WAIT_S:.0f} s",
                        remedy="look at the engines' logs; a process that hangs shows in "
                        "pg_stat_activity as the holder of an advisory lock",
                    )
                await asyncio.sleep(LOOK_S)
            return stack.pop_all()
