"""A machine whose clock is wrong bounds its retries as others do, and is named."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from cli.operations.checks.machine_checks import clock_finding
from cli.operations.machine.embedded_stack import StackInfo
from infra.db import store
from infra.db.database import Database
from infra.temporal.faults import Faults
from mainspring.config.settings import load_settings
from mainspring.errors import EngineUnreachable, SandboxError
from mainspring.words.figures import clock_told
from workers.service_link import ServiceLink


class Fails(ActivityInboundInterceptor):
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        raise self._error


async def ends(error: Exception, attempt: int, waited: timedelta, clock_off: timedelta) -> bool:
    """Whether the failure is final on a machine whose clock is off."""
    env = ActivityEnvironment()
    server = datetime.now(UTC) - clock_off
    env.info = replace(
        env.info, attempt=attempt, scheduled_time=server - waited, started_time=server
    )
    inbound = Faults().intercept_activity(Fails(error))
    given = ExecuteActivityInput(lambda: None, (), None, {})
    with pytest.raises(ApplicationError) as failed:
        await env.run(inbound.execute_activity, given)
    return failed.value.non_retryable


@pytest.mark.parametrize("hours", [-25, -2, 0, 2, 25])
@pytest.mark.parametrize(
    ("error", "attempt", "waited_s", "is_final"),
    [
        (EngineUnreachable("no engine"), 1, 1.0, False),
        (EngineUnreachable("no engine"), 900, 86_390.0, False),
        (EngineUnreachable("no engine"), 900, 86_401.0, True),
        (SandboxError("node"), 10, 590.0, False),
        (SandboxError("node"), 10, 601.0, True),
        (ValueError("a bug"), 5, 50.0, False),
        (ValueError("a bug"), 5, 61.0, True),
    ],
)
async def test_a_bound_in_seconds_is_the_servers(
    error: Exception, attempt: int, waited_s: float, is_final: bool, hours: int
) -> None:
    ended = await ends(error, attempt, timedelta(seconds=waited_s), timedelta(hours=hours))
    assert ended is is_final


@pytest.mark.parametrize("hours", [-2, 2])
async def test_a_clock_that_is_off_is_named_at_start(
    stack: StackInfo, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Wrong":
            return super().now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(store, "datetime", Wrong)
    async with Database.open(stack.database_url) as db:
        off_s = await store.clock_off_s(db)
        with capture_logs() as logs:
            await ServiceLink.open(load_settings(stack.home), db)
    assert abs(off_s - hours * 3600) < 5.0
    [line] = [each for each in logs if "clock" in each["event"]]
    assert line["told"] == clock_told(off_s)
    found = clock_finding("this machine", off_s)
    assert not found.ok and ("ahead of" if hours > 0 else "behind") in found.found


def test_a_clock_that_is_near_enough_is_not() -> None:
    assert clock_told(4.9) == clock_told(-4.9) == ""
    assert clock_finding("this machine", 0.1).ok
