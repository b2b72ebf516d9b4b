"""Answers whose last byte is on its way, and which are not yet noted as delivered.

A client may ask the same again the moment it has an answer: its new request must find the former
one noted, or it would be taken for a repetition. So a request waits for the answers of its session
that were about to end when it came. Imported by the gateway's exchanges.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.protocol import Session

MAX_WAIT_S = 5.0
"""A client that does not read its last byte must not stop the others of its session."""


class Settling:
    def __init__(self) -> None:
        self._open: dict[Session, set[asyncio.Future[None]]] = {}

    @contextmanager
    def answer(self, session: Session) -> Iterator["SessionSettling"]:
        ending = SessionSettling(self._open, session)
        try:
            yield ending
        finally:
            ending.settle()

    async def wait(self, session: Session) -> None:
        if ending := self._open.get(session):
            await asyncio.wait(ending, timeout=MAX_WAIT_S)


class SessionSettling:
    def __init__(self, open: dict[Session, set[asyncio.Future[None]]], session: Session) -> None:
        self._open, self._session = open, session
        self._future: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """From now on the client may have the whole answer."""
        self._future = asyncio.get_running_loop().create_future()
        self._open.setdefault(self._session, set()).add(self._future)

    def settle(self) -> None:
        if self._future is None or self._future.done():
            return
        self._future.set_result(None)
        futures = self._open[self._session]
        futures.discard(self._future)
        if not futures:
            del self._open[self._session]
