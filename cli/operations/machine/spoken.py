"""Waiting that is told: after some seconds of silence, who does not answer, or that all do.

Invariants: what is waited for is neither changed nor given up here, so its own bound holds; a
service counts as silent when it does not answer a question of its own in time, whether its process
ended, stands still or cannot be reached; no sentence has a password. Imported by what commands do.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from infra.db.address import place
from infra.db.database import Database
from mainspring.config.settings import Settings
from mainspring.errors import DatabaseError, TemporalError
from mainspring.words.figures import duration

T = TypeVar("T")

QUIET_S = 8.0
"""A command that has said nothing for so long looks whether its services answer."""
AGAIN_S = 15.0
PROBE_S = 3.0


async def spoken(
    work: Awaitable[T],
    settings: Callable[[], Settings],
    say: Callable[[str], None],
    *,
    what: str = "",
) -> T:
    """The result of `work`. `what` is what it does, for a wait in which every service answers;
    empty: `work` tells that itself."""
    begun = time.monotonic()
    task = asyncio.ensure_future(work)
    try:
        patience_s = QUIET_S
        while not (await asyncio.wait([task], timeout=patience_s))[0]:
            patience_s = AGAIN_S - PROBE_S
            sentence = await _silent(settings()) or what
            if sentence and not task.done():
                say(f"{sentence} (for {duration(time.monotonic() - begun)})")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def _silent(settings: Settings) -> str:
    """Who does not answer; empty when all do."""
    database, temporal = await asyncio.gather(_database(settings), _temporal(settings))
    return "; ".join(sentence for sentence in (database, temporal) if sentence)


async def _database(settings: Settings) -> str:
    url = settings.database_url
    if not url:
        return ""
    try:
        async with asyncio.timeout(PROBE_S), Database.open(url, pool_size=1) as db:
            await db.revision()
    except (TimeoutError, DatabaseError):
        return _waiting("Postgres", place(url))
    return ""


async def _temporal(settings: Settings) -> str:
    from infra.temporal.connection import connect  # a third of a second, which listings do without

    address = settings.temporal_address
    if not address:
        return ""
    try:
        async with asyncio.timeout(PROBE_S):
            await connect(settings)
    except (TemporalError, TimeoutError):
        return _waiting("Temporal", address)
    return ""


def _waiting(service: str, address: str) -> str:
    return (
        f"waiting for {service} at {address}, which does not answer: its process may have ended, "
        "stand still or be overloaded"
    )
