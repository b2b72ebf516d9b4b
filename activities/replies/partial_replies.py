"""Beginnings of the replies that a process has under way, written to the store together.

Invariants: at most one write runs at a time; a later piece of a reply replaces an earlier one that
was not written yet; a reply that is stored whole is not written any more. This is only a
precaution: what cannot be written is dropped with a warning, as the reply itself is stored at its
end. One per process and event loop, used by the activities of replies.
"""

import asyncio
import time

import structlog

from infra.db.database import Database
from infra.db.rollouts import partial_calls
from infra.db.rollouts.partial_calls import CallKey, Kept
from mainspring.errors import DatabaseError
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall

WAIT_S = 0.1
"""Between two writes: with an engine's own interval, what a death costs of each reply."""
MAX_SHARE = 0.2
"""Share of the time spent in writes: a store that is slow is written to less often."""
_log = structlog.get_logger(__name__)


class PartialReplies:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._due: dict[CallKey, Kept] = {}
        self._writing: asyncio.Task[None] | None = None

    async def get(self, rollout: RolloutId, epoch: int, number: int) -> PartialCall | None:
        """The stored beginning of a reply; None: there is none. Raises DatabaseError."""
        return await partial_calls.get(self._db, rollout, epoch, number)

    def keep(self, kept: Kept) -> None:
        """Write it soon. Returns at once: tokens do not wait for the store."""
        self._due[kept.key] = kept
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    def forget(self, rollout: RolloutId, epoch: int, number: int) -> None:
        self._due.pop((rollout, epoch, number), None)

    async def _write(self) -> None:
        while self._due:
            due, self._due = self._due, {}
            began = time.monotonic()
            try:
                await partial_calls.put(self._db, due.values())
            except DatabaseError as error:
                _log.warning("parts of replies not stored", num_replies=len(due), error=str(error))
            took_s = time.monotonic() - began
            await asyncio.sleep(max(WAIT_S, took_s * (1 / MAX_SHARE - 1)))
