"""Which engine a request goes to: the one its key went to before, else the least loaded.

Stickiness keeps a rollout's turns on the engine that holds their KV; it is a preference, bounded in
memory, and moves when the engine does not answer. Used by the client beside this file.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MAX_STICKY_KEYS = 65_536
"""Least recently used keys beyond this are forgotten; they cost one prefill."""
COOL_DOWN_S = 5.0
"""New keys avoid an engine that did not answer for so long."""


class Balancer:
    def __init__(self, engines: Sequence[str]) -> None:
        self._engines = tuple(engines)
        self._in_flight: Counter[str] = Counter()
        self._sticky: OrderedDict[str, str] = OrderedDict()
        self._avoid_until: dict[str, float] = {}

    def use(self, engines: Sequence[str]) -> None:
        """From now on these; requests that are under way end where they are."""
        self._engines = tuple(engines)

    def candidates(self, sticky: str) -> list[str]:
        """All engines, the best for this key first."""
        now = time.monotonic()
        ordered = sorted(
            self._engines,
            key=lambda url: (self._avoid_until.get(url, 0.0) > now, self._in_flight[url]),
        )
        preferred = self._sticky.get(sticky)
        if preferred in ordered and self._avoid_until.get(preferred, 0.0) <= now:
            ordered.remove(preferred)
            ordered.insert(0, preferred)
        return ordered

    @contextmanager
    def sending(self, engine: str, sticky: str) -> Iterator[None]:
        """Count a request to `engine` while it lasts, and remember the key went there."""
        self._sticky[sticky] = engine
        self._sticky.move_to_end(sticky)
        if len(self._sticky) > MAX_STICKY_KEYS:
            self._sticky.popitem(last=False)
        self._in_flight[engine] += 1
        try:
            yield
        finally:
            self._in_flight[engine] -= 1

    def answered(self, engine: str) -> None:
        self._avoid_until.pop(engine, None)

    def did_not_answer(self, engine: str) -> None:
        self._avoid_until[engine] = time.monotonic() + COOL_DOWN_S
