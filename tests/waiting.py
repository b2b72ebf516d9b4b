"""Waiting in tests. A deadline here only ends a test that hangs: machines are shared and stall."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

DEADLINE_S = 180.0
FIRST_LOOK_S = 0.02
LAST_LOOK_S = 0.25
"""Between looks; each wait is half as long again as the one before, since looks cost CPU too."""


async def until(
    condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = DEADLINE_S
) -> None:
    """Until `condition` holds. Raises TimeoutError."""
    look_s = FIRST_LOOK_S
    async with asyncio.timeout(deadline_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(look_s)
            look_s = min(LAST_LOOK_S, 1.5 * look_s)


async def reached(
    point: asyncio.Event, work: asyncio.Task[Any], deadline_s: float = DEADLINE_S
) -> None:
    """Until `work` reached `point`. Raises what ended `work` before it, or TimeoutError."""
    waiting = asyncio.ensure_future(point.wait())
    try:
        async with asyncio.timeout(deadline_s):
            await asyncio.wait([waiting, work], return_when=asyncio.FIRST_COMPLETED)
        assert point.is_set(), f"ended before it came there: {await work!r}"
    finally:
        waiting.cancel()
