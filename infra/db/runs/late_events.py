"""Events of a process that may notice them while the store does not answer: kept, and written
later.

Invariants: telling waits for nothing; an event is written once, however often its writing is tried,
with the time at which it happened; at the end of the block what is left is tried for LAST_TRY_S;
beyond MAX_KEPT the oldest are dropped, and the log has them. One a command.
"""

import asyncio
import time
import uuid
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from infra.db.database import Database
from infra.db.runs import events
from infra.db.tables.event_writes import Event
from mainspring.errors import DatabaseError

LAST_TRY_S = 5.0
MAX_KEPT = 1000

log = structlog.get_logger()


class LateEvents:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._kept: deque[tuple[Event, float]] = deque(maxlen=MAX_KEPT)
        """Each with the time at which it happened, by this process's monotonic clock."""
        self._is_new = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write_all())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._writing is not None
        deadline = time.monotonic() + LAST_TRY_S
        while self._kept and time.monotonic() < deadline and not self._writing.done():
            await asyncio.sleep(0.05)
        self._writing.cancel()
        await asyncio.wait([self._writing])
        for event, _ in self._kept:
            log.warning("an event was not stored", told=event.text)

    def tell(self, event: Event) -> None:
        if len(self._kept) == MAX_KEPT:
            log.warning("an event was not stored", told=self._kept[0][0].text)
        # Its id is chosen once: a writing whose answer was lost is not repeated.
        named = event if event.key else replace(event, key=uuid.uuid4().hex)
        self._kept.append((named, time.monotonic()))
        self._is_new.set()

    async def _write_all(self) -> None:
        while True:
            await self._is_new.wait()
            self._is_new.clear()
            while self._kept:
                event, happened_at = self._kept[0]
                try:
                    await events.put(self._db, event, ago_s=time.monotonic() - happened_at)
                except DatabaseError:
                    await asyncio.sleep(events.RETRY_S)
                    continue
                if self._kept and self._kept[0][0] is event:
                    self._kept.popleft()
