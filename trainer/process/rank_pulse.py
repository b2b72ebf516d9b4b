"""Whether ranks answer beside what they compute: a stopped or deadlocked process does not.

Of one wait of the driver. Knows Ray's actors, not what they do. Used by `trainer.process.driver`.
"""

import time
from collections.abc import Sequence
from typing import Any

import ray

SILENCE_S = 180.0
"""Far above what one call into C may hold Python's lock for, as reading a large tensor does."""


class RankPulse:
    def __init__(self, actors: Sequence[Any]) -> None:
        now = time.monotonic()
        self._actors = actors
        self._asked = [actor.pulse.remote() for actor in actors]
        self._heard_at = [now for _ in actors]

    def silent(self) -> list[int]:
        """Ranks that have not answered for SILENCE_S. One that died counts as heard: the call that
        the driver waits for tells its death."""
        now = time.monotonic()
        for rank, actor in enumerate(self._actors):
            if ray.wait([self._asked[rank]], timeout=0)[0]:
                self._heard_at[rank] = now
                self._asked[rank] = actor.pulse.remote()
        return [rank for rank, heard in enumerate(self._heard_at) if now - heard > SILENCE_S]
