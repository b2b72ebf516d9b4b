"""Heartbeats on a timer while an activity works.

A beat proves only that the event loop lives; every call inside is bounded by its own timeout. What
an attempt tells with it, the next attempt of the activity reads, on whichever worker it runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress

from temporalio import activity

from mainspring.protocol.names import ASKED_S
from mainspring.protocol.timeouts import ACTIVITY_BEAT_S, REPLIES_AT_ONCE, REPLY_BEAT_S

_ASKING: set["Beat"] = set()
"""Beats of activities of this process that wait for a reply."""


class Beat:
    def __init__(self, note: str) -> None:
        self.note = note
        """Shown in Temporal's UI."""
        details = activity.info().heartbeat_details
        last_values = details[1] if len(details) > 1 else None
        self._values: dict[str, object] = dict(last_values) if isinstance(last_values, dict) else {}
        self._asks_since: float | None = None

    def show(self, note: str) -> None:
        """With the next beat."""
        self.note = note

    def earlier(self, name: str) -> object:
        """Value that this or an earlier attempt told under `name`; None if nothing."""
        return self._values.get(name)

    def tell(self, name: str, value: object) -> None:
        """Leave `value` for the next attempt."""
        self._values[name] = value
        self.send()

    def keep(self, name: str, value: object) -> None:
        """Leave `value` for the next beat to tell: that costs the server no write of its own."""
        self._values[name] = value

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a reply is waited for: beats are rarer, and tell for how long. A time would be this
        machine's, whose clock may be off."""
        self._asks_since = time.monotonic()
        _ASKING.add(self)
        try:
            yield
        finally:
            _ASKING.discard(self)
            self._asks_since = None

    @property
    def interval_s(self) -> float:
        """Until the next beat."""
        if self._asks_since is None:
            return ACTIVITY_BEAT_S
        return max(ACTIVITY_BEAT_S, REPLY_BEAT_S * min(1.0, len(_ASKING) / REPLIES_AT_ONCE))

    def send(self) -> None:
        if self._asks_since is not None:
            asking_time = {ASKED_S: time.monotonic() - self._asks_since}
            activity.heartbeat(self.note, self._values, asking_time)
        elif self._values:
            activity.heartbeat(self.note, self._values)
        else:
            activity.heartbeat(self.note)


@asynccontextmanager
async def heartbeating(note: str = "", *, asks: bool = False) -> AsyncIterator[Beat]:
    """Beat in the background. `asks`: for a reply, all the time."""
    beat = Beat(note)

    async def forever() -> None:
        # Most activities end before the first beat is due: a beat costs the server a write.
        while True:
            await asyncio.sleep(beat.interval_s)
            beat.send()

    task = asyncio.create_task(forever())
    try:
        with beat.asking() if asks else nullcontext():
            yield beat
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
