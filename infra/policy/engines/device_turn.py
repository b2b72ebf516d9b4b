"""The turn of engines on devices that they share with the trainer's ranks: requests wait for it.

Invariants: what waits here is in no engine, so a step of the trainer costs a request neither time
nor a fault; of all requests of a process one looks, at most every LOOK_S. Who has the devices is a
lease (`infra.db.leases.devices`), which ends with its process. Used by the client.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from infra.db.leases import Holder
from mainspring.errors import EngineBusy
from mainspring.words.figures import duration

LOOK_S = 0.5
SINCE_CUT_S = 0.05
"""From the end of a request that was cut off to the next one."""
WAIT_S = 120.0
"""A step may take far longer; then the caller asks again, as its own attempt has a bound."""


class DeviceTurn:
    def __init__(self, holder: Callable[[], Awaitable[Holder | None]]) -> None:
        """`holder`: the trainer that has the devices; None: engines have them."""
        self._ask = holder
        self._holder: Holder | None = None
        self._looked = -math.inf
        self._looking = asyncio.Lock()

    async def come(self, *, anew: bool = False) -> None:
        """Wait until engines have the devices. `anew`: a request was cut off SINCE_CUT_S ago, most
        likely by the trainer that took them: what was seen before does not count. Raises
        EngineBusy, DatabaseError."""
        now = time.monotonic()
        until, since = now + WAIT_S, now - (SINCE_CUT_S if anew else LOOK_S)
        while (holder := await self._look(since)) is not None:
            if time.monotonic() > until:
                raise EngineBusy(
                    f"the engines have given their memory to the trainer ({holder.owner}, for "
                    f"{duration(holder.held_s)})",
                    remedy="they answer when its step is done (trainer.colocate)",
                )
            await asyncio.sleep(LOOK_S)
            since = time.monotonic() - LOOK_S / 2

    async def _look(self, since: float) -> Holder | None:
        async with self._looking:
            if self._looked < since:
                began = time.monotonic()
                holder = await self._ask()
                self._holder = None if holder is None or holder.is_gone else holder
                self._looked = began
        return self._holder
