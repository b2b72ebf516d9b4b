"""Shared by all pages: the store to read, Temporal to ask, and answers that are kept for seconds.

Invariants: the store may be down when the viewer starts and at any time later: each page asks
again, at the address that is recorded then; readers of one answer at one time share one query; a
query that takes too long is named by the part of the page that it was for. Imported by `pages`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client

from infra.db.connect import reading_database, with_recorded_namespace
from infra.db.database import Database
from infra.db.faults import QueryTooLong
from infra.db.reading.trained_steps import Step
from infra.db.runs.campaign_record import CampaignRecord
from infra.temporal.connection import connect
from infra.temporal.service import settled
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from mainspring.words.wait import Wait

T = TypeVar("T")
WaitsHere = Callable[[CampaignRecord, Sequence[Wait]], Sequence[Wait]]
STATEMENT_TIMEOUT_S = 5.0
CHECKED_FOR_S = 30.0
"""After this long the schema is looked at again: it may have been upgraded."""
MAX_KEPT = 500
"""Answers that are kept at once."""


class PartTooLong(DatabaseError):
    """The query of one part of a page took too long."""


class Viewer:
    """One for each server. Close it at the end."""

    def __init__(
        self,
        home: Path | None,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        waits_here: WaitsHere = lambda _, found: found,
    ) -> None:
        """`waits_here`: tells a run's waits as they are where its workers may be on this machine
        (`moves`)."""
        self._home = home
        self._statement_timeout_s = statement_timeout_s
        self.waits_here = waits_here
        self._open = AsyncExitStack()
        self._db: Database | None = None
        self._checked_at = 0.0
        self._opening = asyncio.Lock()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._kept: dict[Any, _Kept] = {}
        self.pollers: dict[str, Any] = {}
        """Pollers of campaigns that are looked at, by campaign (`live`)."""
        self.words: dict[str, str] = {}
        """The newest word of each of them: another one whenever its page shows something else."""
        self.steps: dict[str, dict[int, Step]] = {}
        """Steps that were read, by campaign and number (`pages.campaign`)."""
        self.frozen: Collection[CampaignId] | None = None
        """The runs of a copy in files, where pages are made for one."""
        self.ends: list[Callable[[], Awaitable[None]]] = []
        """Called when it ends (`actions`)."""
        self.settings: Settings = load_settings(home)

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[Database]:
        """The store, for the queries of the part of a page that has this name. Raises
        DatabaseError."""
        db = await self._database()
        try:
            yield db
        except QueryTooLong as error:
            raise PartTooLong(
                f"{name}: the query took longer than {self._statement_timeout_s:.0f} s",
                remedy=error.remedy,
            ) from error
        except DatabaseError:
            self._checked_at = 0.0
            raise

    async def _database(self) -> Database:
        async with self._opening:
            if self._db is not None and time.monotonic() - self._checked_at < CHECKED_FOR_S:
                return self._db
            settings = load_settings(self._home)
            if self._db is None or settings.database_url != self.settings.database_url:
                await self._open.aclose()
                self._db = self._client = None
                self._db = await self._open.enter_async_context(
                    reading_database(settings, statement_timeout_s=self._statement_timeout_s)
                )
            self.settings = settings
            await self._db.check()
            self.settings = await with_recorded_namespace(settings, self._db)
            self._checked_at = time.monotonic()
            return self._db

    async def temporal(self) -> Client:
        """Raises TemporalError, DatabaseError."""
        db = await self._database()
        async with self._connecting:
            if self._client is None:
                self._client = await connect(await settled(self.settings, db))
            return self._client

    async def kept(self, key: Any, for_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of `ask`, or the one that was given less than `for_s` ago. Readers at one time
        wait for one answer; one that leaves does not cancel it."""
        known = self._kept.get(key)
        if known is None or known.is_old:
            if len(self._kept) >= MAX_KEPT:
                self._kept = {k: each for k, each in self._kept.items() if not each.is_old}
            known = self._kept[key] = _Kept(asyncio.ensure_future(ask()), for_s)
            known.answer.add_done_callback(known.count_from_now)
        return await asyncio.shield(known.answer)

    def forget(self) -> None:
        """Answers from before now are given no more: something was changed from a page."""
        self._kept.clear()

    async def close(self) -> None:
        for end in self.ends:
            await end()
        await self._open.aclose()


class _Kept:
    """An answer, and until when it is given again; while it is asked for, always."""

    def __init__(self, answer: asyncio.Future[Any], for_s: float) -> None:
        self.answer = answer
        self._for_s = for_s
        self._until = inf

    def count_from_now(self, answer: asyncio.Future[Any]) -> None:
        has_failed = answer.cancelled() or answer.exception() is not None
        self._until = 0.0 if has_failed else time.monotonic() + self._for_s

    @property
    def is_old(self) -> bool:
        return time.monotonic() >= self._until
