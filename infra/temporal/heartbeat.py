"""Heartbeats on a timer while an activity works.

A beat proves only that the event loop lives; every call inside is bounded by its own timeout. What
an attempt tells with it, the next attempt of the activity reads, on whichever worker it runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from temporalio import activity

from mainspring.protocol.timeouts import ACTIVITY_BEAT_S


class Beat:
    def __init__(self, note: str) -> None:
        self.note = note
        """Shown in Temporal's UI."""
        details = activity.info().heartbeat_details
        told = details[1] if len(details) > 1 else None
        self._told: dict[str, object] = dict(told) if isinstance(told, dict) else {}
        self._begun: dict[str, float] = {}

    def show(self, note: str) -> None:
        """With the next beat."""
        self.note = note

    def earlier(self, name: str) -> object:
        """Value that this or an earlier attempt told under `name`; None if nothing."""
        return self._told.get(name)

    def tell(self, name: str, value: object) -> None:
        """Leave `value` for the next attempt."""
        self._told[name] = value
        self.send()

    def keep(self, name: str, value: object) -> None:
        """Leave `value` for the next beat to tell: that costs the server no write of its own."""
        self._told[name] = value

    @contextmanager
    def aging(self, name: str) -> Iterator[None]:
        """Have each beat within the block tell its age in seconds, to those who look. A time would
        be this machine's, whose clock may be off."""
        self._begun[name] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[name]

    def send(self) -> None:
        ages = {name: time.monotonic() - begun for name, begun in self._begun.items()}
        if ages:
            activity.heartbeat(self.note, self._told, ages)
        elif self._told:
            activity.heartbeat(self.note, self._told)
        else:
            activity.heartbeat(self.note)


@asynccontextmanager
async def heartbeating(note: str = "") -> AsyncIterator[Beat]:
    """Beat in the background."""
    beat = Beat(note)

    async def forever() -> None:
        # Most activities end before the first beat is due: a beat costs the server a write.
        while True:
            await asyncio.sleep(ACTIVITY_BEAT_S)
            beat.send()

    task = asyncio.create_task(forever())
    try:
        yield beat
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
