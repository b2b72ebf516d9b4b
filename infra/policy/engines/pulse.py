"""Whether an engine answers while replies are awaited from it, and for how long it did not.

A stopped, stalled or cut-off engine may still serve a reply later, and its own measure of that
reply's latency includes the stop. An outage must not count as time that a rollout spent: while
requests wait at an engine, it is asked something small every `PULSE_S`; time without any answer is
silence. One prober per engine, only while somebody waits. Used by the client beside this file.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PULSE_S = 1.0
"""Between two questions; most replies end before the first."""
SILENT_AFTER_S = 3.0
"""Answers that take less are a busy engine or a busy worker, not an outage."""


@dataclass(slots=True)
class Watch:
    silent_s: float = 0.0
    """Silent part of the time watched; set when the watch ends."""


@dataclass(slots=True)
class _Engine:
    num_watches: int = 0
    prober: asyncio.Task[None] | None = None
    silent_s: float = 0.0
    """All silence that has ended."""
    unheard_since: float | None = None
    """When the first question was asked that is not answered yet."""

    def heard(self, now: float) -> None:
        self.silent_s += self._silence(now)
        self.unheard_since = None

    def total_silence(self, now: float) -> float:
        return self.silent_s + self._silence(now)

    def _silence(self, now: float) -> float:
        length = 0.0 if self.unheard_since is None else now - self.unheard_since
        return length if length > SILENT_AFTER_S else 0.0


class Pulse:
    def __init__(self, ask: Callable[[str], Awaitable[bool]]) -> None:
        """`ask` returns whether the engine answered, anything at all; it may take any time."""
        self._ask = ask
        self._engines: defaultdict[str, _Engine] = defaultdict(_Engine)

    @contextmanager
    def watching(self, engine: str) -> Iterator[Watch]:
        """While a reply of `engine` is awaited."""
        state = self._engines[engine]
        began, before_s = time.monotonic(), state.total_silence(time.monotonic())
        state.num_watches += 1
        if state.prober is None or state.prober.done():
            state.unheard_since = None
            state.prober = asyncio.create_task(self._probe(engine, state))
        watch = Watch()
        try:
            yield watch
        finally:
            now = time.monotonic()
            # A silence that began before this watch did is only its own from then on.
            watch.silent_s = min(state.total_silence(now) - before_s, now - began)
            state.num_watches -= 1
            if state.num_watches == 0:
                state.prober.cancel()

    async def _probe(self, engine: str, state: _Engine) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            if state.unheard_since is None:
                state.unheard_since = time.monotonic()
            if await self._ask(engine):
                state.heard(time.monotonic())
