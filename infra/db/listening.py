"""Waiting for what Postgres tells: NOTIFY on one channel, for many who wait at once.

Invariants: a notice wakes all who wait for its text; one that was missed, as the connection was
down, is made up for by the caller, who looks for itself at intervals. One a process and channel.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import structlog

from infra.db.database import CONNECT_TIMEOUT_S, driver_url

RECONNECT_S = 1.0
_log = structlog.get_logger(__name__)


class Notices:
    def __init__(self, url: str, channel: str) -> None:
        self._url = driver_url(url).set(drivername="postgresql")
        self._channel = channel
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def of(self, text: str) -> Iterator[asyncio.Event]:
        """Set at each notice with this text; clear it before looking."""
        event = asyncio.Event()
        self._waiting[text].add(event)
        try:
            yield event
        finally:
            self._waiting[text].discard(event)
            if not self._waiting[text]:
                del self._waiting[text]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen in the background."""
        task = asyncio.create_task(self._run_forever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run_forever(self) -> None:
        while True:
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                _log.info("not listening to Postgres", channel=self._channel, reason=str(error))
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        closed = asyncio.Event()
        connection = await asyncpg.connect(
            self._url.render_as_string(hide_password=False), timeout=int(CONNECT_TIMEOUT_S)
        )
        try:
            connection.add_termination_listener(lambda _: closed.set())
            await connection.add_listener(self._channel, self._told)
            # Notices before this connection was up were missed: look now.
            for events in self._waiting.values():
                for event in events:
                    event.set()
            await closed.wait()
        finally:
            connection.terminate()

    def _told(self, *told: object) -> None:
        for event in self._waiting.get(str(told[-1]), ()):
            event.set()
