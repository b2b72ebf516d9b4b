"""A pause asked for by signal, which is recorded while no worker runs, and its place in the store.

Invariants: of several signals the row shows the last; a pause that comes while a run ends never
overwrites its end. The updates `pause` and `resume` of earlier command lines write by themselves.
Imported by the workflows of campaigns, supervised runs and other runs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.status import CampaignStatus


class Pausing:
    def __init__(self) -> None:
        self._is_ending = False
        self._writer = asyncio.Lock()
        """One write of the status at a time: they run beside each other otherwise."""

    async def write(
        self,
        is_paused: Callable[[], bool],
        set_status: Callable[[CampaignStatus], Awaitable[None]],
    ) -> None:
        """Write the status as it is when its turn comes; not that of a run that ends."""
        async with self._writer:
            if not self._is_ending:
                await set_status(CampaignStatus.PAUSED if is_paused() else CampaignStatus.RUNNING)

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """The end is written in this block, after what is being written, and nothing after it."""
        self._is_ending = True
        async with self._writer:
            yield
