"""Worker processes in a home of their own, and where on a server a rollout worker polls."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListNamespacesRequest
from temporalio.client import Client

from mainspring.ids import ROLLOUT_QUEUE

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}


@asynccontextmanager
async def worker(
    home: Path, *words: str, **configured: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`mainspring worker WORDS` with these variables, without `MAINSPRING_`, and no others of ours;
    its log is `<home>/logs/worker.log`."""
    variables = {f"MAINSPRING_{name}": value for name, value in configured.items()}
    (home / "logs").mkdir(parents=True, exist_ok=True)
    with (home / "logs" / "worker.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "worker", *words, "--home", str(home)),
            env=ENVIRONMENT | variables,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def rollout_worker(
    home: Path, **configured: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return worker(home, "rollout", **configured)


async def pollers(address: str, pid: int) -> set[str]:
    """The namespaces of the server at `address` in which the process polls the rollout queue."""
    client = await Client.connect(address)
    listed = await client.workflow_service.list_namespaces(ListNamespacesRequest(page_size=100))
    found = set[str]()
    for name in (each.namespace_info.name for each in listed.namespaces):
        described = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=name,
                task_queue=TaskQueue(name=ROLLOUT_QUEUE),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            )
        )
        if any(each.identity.startswith((f"{pid}@", f"{pid}-")) for each in described.pollers):
            found.add(name)
    return found
