"""Makes ended rollouts searchable, in every rollout worker, beside the replies.

Invariants: a turn never waits for it; one rollout at a time, and a pause of as long at least, so
that it takes at most half of a core of any worker; what one worker leaves, another one does.
"""

import asyncio
import time

import structlog

from infra.db.database import Database
from infra.db.rollouts.search_pieces import fill_next
from mainspring.errors import DatabaseError

LOOK_EVERY_S = 5.0
"""How late an ended rollout may be found: a query each, over an index of what is missing."""
LEAST_PAUSE_S = 0.05

log = structlog.get_logger()


class SearchFilling:
    def __init__(self, db: Database, look_every_s: float = LOOK_EVERY_S) -> None:
        self._db = db
        self._look_every_s = look_every_s

    async def run_forever(self) -> None:
        while True:
            begun = time.monotonic()
            pause_s = self._look_every_s
            try:
                if await fill_next(self._db) is not None:
                    pause_s = max(LEAST_PAUSE_S, time.monotonic() - begun)
            except DatabaseError as error:
                log.warning("words of ended rollouts are not stored yet", reason=error.message)
            await asyncio.sleep(pause_s)
