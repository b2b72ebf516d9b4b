"""Run Temporal workers until SIGTERM or Ctrl-C, then drain.

Invariant: a drain never fails a rollout. Activities get `GRACE` to finish; what is cancelled then
is done by the next worker: such an attempt is no failure, and every activity is idempotent.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, NoReturn

from temporalio.client import Client
from temporalio.worker import (
    PollerBehavior,
    PollerBehaviorAutoscaling,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowRunner,
)

from infra.temporal.faults import Faults
from infra.tracking import telemetry
from mainspring.protocol.timeouts import HEARTBEAT_THROTTLE_S
from workers.service_link import ServiceLink, ServicesMoved, start_anew
from workers.watchdog import tell_watchdog

GRACE = timedelta(seconds=10)
NUM_POLLERS = 16
"""Waiting at once for each kind of task. A task that finds no poller waiting is first written to
the server's database; the SDK's default of 5 is too few for groups that start together."""
NODE_POLLERS = PollerBehaviorAutoscaling(minimum=1, initial=1, maximum=NUM_POLLERS)
"""Polls of each of a node's three workers: an idle node has three open, and more as tasks come.
With NUM_POLLERS each, 25 nodes took all that Temporal allows, and healthy nodes were taken for
dead."""
IDLE_NODE_POLLS = 3
BUSY_NODE_POLLS = IDLE_NODE_POLLS * NUM_POLLERS
ALLOWED_POLLS = 1200
"""Polls of activities that a Temporal server allows a namespace at once, by default; it refuses the
rest (frontend.namespaceCount)."""
HEARTBEAT_THROTTLE = timedelta(seconds=HEARTBEAT_THROTTLE_S)


def workflow_runner() -> WorkflowRunner:
    """Without the SDK's sandbox, a third of a workflow's CPU time: it looks for code that would not
    replay, and the tests replay every kind of workflow inside it (tests/replay)."""
    return UnsandboxedWorkflowRunner()


def node_worker(client: Client, *, polls: PollerBehavior = NODE_POLLERS, **options: Any) -> Worker:
    """A worker of a node: its own queue's, or one of a queue that nodes share."""
    return Worker(
        client,
        interceptors=[Faults()],
        graceful_shutdown_timeout=GRACE,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        activity_task_poller_behavior=polls,
        **options,
    )


def run_worker(work: Coroutine[Any, Any, None]) -> NoReturn:
    """The whole life of a worker process; begins anew when its services have moved."""
    try:
        asyncio.run(work)
    except ServicesMoved as moved:
        telemetry.end()
        start_anew(moved)
    finally:
        telemetry.end()
    end_process(0)


def stop_signal() -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C, which end nothing by themselves from here on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def poll_until_stopped(
    link: ServiceLink,
    workers: list[Worker],
    *beside: Callable[[], Awaitable[None]],
    stop: asyncio.Event | None = None,
) -> None:
    """Run `workers` (and the coroutines `beside`, e.g. a reaper's timer) until a signal comes.
    `stop`: the caller's `stop_signal`, which may have come already.

    Raises ServicesMoved and ForeignNamespace, and what ends a worker or a coroutine.
    """
    stop = stop or stop_signal()
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    side = [asyncio.ensure_future(start()) for start in (link.run_forever, tell_watchdog, *beside)]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, *side, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            if task.exception() is not None:
                await link.check()  # a namespace that is not there ends a worker without a reason
            task.result()
    finally:
        # First what runs beside: it may have workers of its own to drain, at the same time.
        for task in [*side, stopped]:
            task.cancel()
        await asyncio.gather(*(worker.shutdown() for worker in workers))
        for task in tasks:
            task.cancel()
        await asyncio.wait([*tasks, *side, stopped])


def end_process(code: int) -> NoReturn:
    """Leave without the interpreter's shutdown: the SDK's threads can abort it with SIGABRT."""
    telemetry.end()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
