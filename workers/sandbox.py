"""The sandbox node: a container host as a Temporal worker, without an open port.

Two workers on one client: opens and gradings from the shared queue, everything that must happen in
a sandbox this node holds from the node's own queue. The queue's name is the node's stable id, so a
restarted process hears of the sandboxes its predecessor lost.
"""

import asyncio
import os
from functools import partial
from pathlib import Path

import structlog
from temporalio.worker import Worker

from activities.grading import GradingActivities
from activities.known import Known
from activities.reaper import REAP_EVERY_S, Reaper
from activities.sandbox import SandboxActivities
from infra.db.opening import open_database
from infra.sandbox.protocol import BackendUnavailable
from infra.sandbox.select import available_backends
from infra.temporal import connect
from mainspring.ids import SANDBOX_QUEUE, NodeId, node_queue
from mainspring.settings import load_settings
from workers.polling import (
    GRACE,
    HEARTBEAT_THROTTLE,
    NUM_POLLERS,
    end_process,
    poll_until_stopped,
)

log = structlog.get_logger()


def main(home: Path | None, capacity: int) -> None:
    asyncio.run(_run(home, capacity))
    end_process(0)


async def _run(home: Path | None, capacity: int) -> None:
    settings = load_settings(home)
    backends = await available_backends(settings.home / "sandboxes")
    if all(isinstance(backend, BackendUnavailable) for backend in backends.values()):
        raise BackendUnavailable(
            "no sandbox backend works on this machine:\n"
            + "\n".join(f"  {name}: {reason}" for name, reason in backends.items()),
            remedy="see `mainspring doctor`",
        )
    client = await connect(settings)
    node = NodeId(settings.node_id)
    async with open_database(settings) as db:
        known = Known(db)
        sandboxes = SandboxActivities(db, known, node, backends, capacity)
        grading = GradingActivities(db, known, node, backends, concurrency=os.cpu_count() or 1)
        reaper = Reaper(db, node, backends, sandboxes)
        await reaper.reap_predecessor()
        make = partial(
            Worker,
            client,
            graceful_shutdown_timeout=GRACE,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            max_concurrent_activity_task_polls=NUM_POLLERS,
        )
        shared = make(
            task_queue=SANDBOX_QUEUE,
            activities=[sandboxes.open_sandbox, grading.grade],
            max_concurrent_activities=capacity * 2,
        )
        own = make(
            task_queue=node_queue(node),
            activities=[
                sandboxes.execute,
                sandboxes.restore_sandbox,
                sandboxes.collect_patch,
                sandboxes.close_sandbox,
            ],
            max_concurrent_activities=capacity * 4,
        )
        log.info("node is up", node=node, capacity=capacity, reap_every_s=REAP_EVERY_S)
        try:
            await poll_until_stopped([shared, own], reaper.run_forever)
        finally:
            await sandboxes.close_all()
