"""Heartbeats on a timer while an activity works.

A beat proves only that the event loop lives; every call inside is bounded by its own timeout.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

BEAT_S = 4.0
"""A third of the workflows' heartbeat timeout, rounded down."""


@asynccontextmanager
async def heartbeating(note: str = "") -> AsyncIterator["Beat"]:
    """Beat in the background; `beat.note` is shown in Temporal's UI."""
    beat = Beat(note)

    async def forever() -> None:
        # Most activities end before the first beat is due: a beat costs the server a write.
        while True:
            await asyncio.sleep(BEAT_S)
            activity.heartbeat(beat.note)

    task = asyncio.create_task(forever())
    try:
        yield beat
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Beat:
    def __init__(self, note: str) -> None:
        self.note = note
