"""Keeps simulated time passing where the time-skipping server has lost count.

The server counts the reasons not to skip time: tasks that run, requests under way. Now and then it
does not count one back (temporalio/sdk-java, issues 1138 and 2246 know of such cases), and its
clock then runs like any other, although nothing is left to wait for. Invariant: a reason is only
taken away when no activity began or ended for QUIET_S, many times what any of them takes, and the
clock did not skip; a server that stands still whatever is taken away ends the run.
"""

import asyncio
import time
from typing import Any

from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from mainspring.errors import TemporalError

LOOK_S = 0.25
QUIET_S = 1.0
MAX_IN_VAIN = 10
"""Reasons that are taken away in a row."""
SLOW = 1.5
"""Simulated seconds in a real one, up to which the clock does not skip."""


class Activity(Interceptor):
    """Note for each worker when an activity began or ended last."""

    def __init__(self) -> None:
        self.seen_s = time.monotonic()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Noting(next, self)


class _Noting(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, seen: Activity) -> None:
        super().__init__(next)
        self._seen = seen

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self._seen.seen_s = time.monotonic()
        try:
            return await super().execute_activity(input)
        finally:
            self._seen.seen_s = time.monotonic()


async def keep_passing(server: WorkflowEnvironment, seen: Activity) -> None:
    """Until it is cancelled. Raises TemporalError when nothing makes the clock skip."""
    since: tuple[float, float] | None = None
    num_in_vain = 0
    while True:
        await asyncio.sleep(LOOK_S)
        real_s = time.monotonic()
        simulated_s = (await server.get_current_time()).timestamp()
        if since is None:
            since = (real_s, simulated_s)
            continue
        passed_s = real_s - since[0]
        if seen.seen_s > since[0] or simulated_s - since[1] > SLOW * passed_s:
            since, num_in_vain = (real_s, simulated_s), 0
        elif passed_s > QUIET_S:
            if num_in_vain == MAX_IN_VAIN:
                raise TemporalError(
                    "the time-skipping server stands still with nothing to do",
                    remedy="run the command again; if it stands still again, report the options",
                )
            await server.client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())
            since, num_in_vain = None, num_in_vain + 1
