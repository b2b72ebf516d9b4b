"""A reply is held while the store does not answer: another attempt would generate it again.

Imported by the activities of replies.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from infra.temporal.heartbeat import Beat
from mainspring.errors import DatabaseError
from mainspring.protocol.timeouts import STORE_TIMEOUT_S
from mainspring.trajectories.turns import Call

HOLD_S = STORE_TIMEOUT_S - 5.0
"""How long a reply waits for the store: an attempt has STORE_TIMEOUT_S beside the reply's time."""
HOLD_WAIT_S = 0.5
"""Between two tries to store a reply."""


async def stored(put: Callable[[], Awaitable[Call]], name: str, beat: Beat) -> Call:
    """What stands in the store once `put` has written. `name`: of the turn or call, for the UI.
    Raises DatabaseError when an outage lasts, Fenced."""
    until = time.monotonic() + HOLD_S
    while True:
        try:
            return await put()
        except DatabaseError as error:
            if time.monotonic() + HOLD_WAIT_S > until:
                raise
            beat.note = f"{name}: holding its reply, {error.message}"
            await asyncio.sleep(HOLD_WAIT_S)
