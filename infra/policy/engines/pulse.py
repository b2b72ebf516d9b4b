"""Whether an engine answers while replies are awaited from it, and for how long it did not.

A stopped, stalled or cut-off engine may still serve a reply later, and its own measure of that
reply's latency includes the stop. An outage must not count as time that a rollout spent: while
requests wait at an engine, it is asked something small every `PULSE_S`; time without any answer is
silence. One prober per engine, only while somebody waits. A reply that is awaited from an engine
that stays silent is given up, where another one can continue it. Used by the client beside this
file.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

PULSE_S = 1.0
"""Between two questions; most replies end before the first."""
SILENT_AFTER_S = 3.0
"""Answers that take less are a busy engine or a busy worker, not an outage."""
MOVES_AFTER_S = 15.0
"""Replies are not awaited any longer from an engine that is silent for so long, where another one
answers: a frozen process is a dead one."""


@dataclass(slots=True, eq=False)
class Watch:
    limit: asyncio.Timeout
    """Entered by what awaits the reply; it ends when the reply is given up."""
    silent_s: float = 0.0
    """Silent part of the time watched; set when the watch ends."""

    def give_up(self) -> None:
        with suppress(RuntimeError):  # it was not entered, or it is over
            self.limit.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class _Engine:
    watches: set[Watch] = field(default_factory=set)
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
    def __init__(
        self,
        ask: Callable[[str], Awaitable[bool]],
        is_silent: Callable[[str], bool] = lambda engine: False,
    ) -> None:
        """`ask` returns whether the engine answered, anything at all; it may take any time.
        `is_silent`: told of an engine that is silent; whether another one can continue its
        replies."""
        self._ask = ask
        self._is_silent = is_silent
        self._engines: defaultdict[str, _Engine] = defaultdict(_Engine)

    @contextmanager
    def watching(self, engine: str) -> Iterator[Watch]:
        """While a reply of `engine` is awaited."""
        state = self._engines[engine]
        began, before_s = time.monotonic(), state.total_silence(time.monotonic())
        watch = Watch(asyncio.timeout(None))
        state.watches.add(watch)
        if state.prober is None or state.prober.done():
            state.unheard_since = None
            state.prober = asyncio.create_task(self._probe(engine, state))
        try:
            yield watch
        finally:
            now = time.monotonic()
            # A silence that began before this watch did is only its own from then on.
            watch.silent_s = min(state.total_silence(now) - before_s, now - began)
            state.watches.discard(watch)
            if not state.watches:
                state.prober.cancel()

    async def _probe(self, engine: str, state: _Engine) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            if state.unheard_since is None:
                state.unheard_since = time.monotonic()
            asking = asyncio.ensure_future(self._ask(engine))
            try:
                while not asking.done():
                    await asyncio.wait({asking}, timeout=PULSE_S)
                    self._look(engine, state)
            finally:
                asking.cancel()
            if asking.result():
                state.heard(time.monotonic())
            else:
                self._look(engine, state)

    def _look(self, engine: str, state: _Engine) -> None:
        unheard_s = time.monotonic() - (state.unheard_since or time.monotonic())
        if unheard_s > SILENT_AFTER_S and self._is_silent(engine) and unheard_s > MOVES_AFTER_S:
            for watch in state.watches:
                watch.give_up()
