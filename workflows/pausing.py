"""A pause asked for by signal, which is recorded while no worker runs, and its place in the store.

Invariants: of several signals the row shows the last; a pause that comes while a run ends never
overwrites its end. The updates `pause` and `resume` of earlier command lines write by themselves.
Imported by the workflows of campaigns, supervised runs and other runs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Pausing:
    def __init__(self) -> None:
        self._is_ending = False
        self._writer = asyncio.Lock()
        """One write of the status at a time: they run beside each other otherwise."""

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[bool]:
        """Whether the status may be written in this block: not that of a run that ends."""
        async with self._writer:
            yield not self._is_ending

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """The end is written in this block, after what is being written, and nothing after it."""
        self._is_ending = True
        async with self._writer:
            yield
