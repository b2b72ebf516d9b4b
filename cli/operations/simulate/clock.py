"""Keeps simulated time passing where the time-skipping server has lost count.

The server counts the reasons not to skip time: tasks that run, requests under way. Now and then it
does not count one back (temporalio/sdk-java, issues 1138 and 3092), and its clock then runs like
any other, although nothing is left to wait for. Invariant: time is only let pass again when no
activity began or ended for QUIET_S, ten times what any of them takes, and the clock did not skip.
"""

import asyncio
import time
from typing import Any

from temporalio.api.testservice.v1 import UnlockTimeSkippingRequest
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

LOOK_S = 0.5
QUIET_S = 2.0
SLOW = 1.5
"""Simulated seconds in a real one, up to which the clock does not skip."""


class Activity(Interceptor):
    """Of each worker: notes when an activity began or ended last."""

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
    """Until it is cancelled."""
    quiet_since: tuple[float, float] | None = None
    while True:
        await asyncio.sleep(LOOK_S)
        real_s = time.monotonic()
        simulated_s = (await server.get_current_time()).timestamp()
        if quiet_since is None or seen.seen_s > quiet_since[0]:
            quiet_since = (real_s, simulated_s)
            continue
        passed_s = real_s - quiet_since[0]
        if simulated_s - quiet_since[1] > SLOW * passed_s:
            quiet_since = (real_s, simulated_s)
        elif passed_s > QUIET_S:
            await _unlock(server)
            quiet_since = None


async def _unlock(server: WorkflowEnvironment) -> None:
    await server.client.test_service.unlock_time_skipping(UnlockTimeSkippingRequest())
