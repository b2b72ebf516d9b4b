"""Waiting for what Postgres tells: NOTIFY on one channel, for many who wait at once.

Invariants: a notice wakes all who wait for its text; one that was missed, as the connection was
down, is made up for by the caller, who looks for itself at intervals. One a process and channel.
"""

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import structlog
from sqlalchemy import func, select

from infra.db.address import read_address
from infra.db.database import Database
from infra.db.faults import classify
from infra.db.session import open_session

RECONNECT_S = 1.0
PROOF_S = 5.0
"""A notice between two connections takes milliseconds, on a machine that is not overloaded."""
_LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
_log = structlog.get_logger(__name__)


class Notices:
    def __init__(self, url: str, channel: str) -> None:
        """`url`: a server's own, or a pooler's that keeps a session (see `prove_notices`). Raises
        ConfigError."""
        self._address = read_address(url)
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
        last_reason = ""
        while True:
            try:
                await self._listen()
            except _LOST as error:
                reason = str(classify(error, self._address.name))
                # A server that does not answer is asked each second, and told of once.
                note = _log.debug if reason == last_reason else _log.warning
                note("not listening to Postgres", channel=self._channel, reason=reason)
                last_reason = reason
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        closed = asyncio.Event()
        connection = await open_session(self._address)
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

    def _told(self, *notice: object) -> None:
        for event in self._waiting.get(str(notice[-1]), ()):
            event.set()


async def prove_notices(url: str, db: Database) -> bool:
    """Whether a connection to `url` hears what is told through `db`: not when it is a pooler's that
    gives sessions away between transactions, nor when it leads to another database. Raises
    DatabaseError."""
    address = read_address(url)
    arrival = asyncio.Event()
    channel = f"mainspring_proof_{secrets.token_hex(8)}"
    try:
        connection = await open_session(address)
        try:
            await connection.add_listener(channel, lambda *_: arrival.set())
            async with db.transaction() as sender:
                await sender.execute(select(func.pg_notify(channel, "")))
            async with asyncio.timeout(PROOF_S):
                await arrival.wait()
        except TimeoutError:
            return False
        finally:
            connection.terminate()
    except _LOST as error:
        raise classify(error, address.name) from error
    return True
