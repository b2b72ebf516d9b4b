"""Waiting in tests. A deadline here only ends a test that hangs: machines are shared and stall."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

DEADLINE_S = 180.0


async def until(
    condition: Callable[[], bool | Awaitable[bool]], deadline_s: float = DEADLINE_S
) -> None:
    """Until `condition` holds. Raises TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.05)
