"""Asks every running process of a fleet to import the extensions that a new run names.

Invariants: nothing is stored; a process that cannot import one is named and the run is refused; one
that does not answer is a warning, because it may have just ended. Used by `mainspring campaign
start`, and by runs whose workers are elsewhere.
"""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from infra.db import store
from infra.db.database import Database
from infra.db.nodes import nodes
from mainspring.config.any_run import AnyRun
from mainspring.errors import UsageError
from mainspring.extensions import Extension, ProcessRole, extensions_of
from mainspring.ids import (
    ROLLOUT_QUEUE,
    campaign_id,
    node_queue,
    waiting_trainer_queue,
    worker_queue,
)
from mainspring.protocol.extensions import ExtensionsInput, ExtensionsResult
from mainspring.protocol.names import Workflow
from mainspring.protocol.timeouts import EXTENSIONS_TIMEOUT_S, POLLER_SILENT_S, SILENT_WORKER_S
from mainspring.status import NodeStatus

NUM_EVENTS_UNTAKEN = 2
"""In the history of a workflow that no worker has begun: it is started, its task is scheduled."""
ANSWER_TIMEOUT_S = SILENT_WORKER_S + EXTENSIONS_TIMEOUT_S
INSTALL = "install its package there and restart the process"


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the fleet."""

    role: ProcessRole
    name: str
    """The node's id, or the process and host that Temporal's UI shows."""
    queue: str
    """Polled by this process only."""


@dataclass(frozen=True, slots=True)
class ExtensionReport:
    process: Process
    problems: list[str] | None
    """None: no answer."""

    @property
    def who(self) -> str:
        return f"{self.process.role} {self.process.name}"


async def ask(client: Client, db: Database, config: AnyRun) -> list[ExtensionReport]:
    """Every process that would import something, with what it cannot import. Empty when the run
    names no extension, or no rollout worker runs that could ask."""
    named = {role: extensions_of(config, role) for role in ProcessRole}
    if not any(named.values()):
        return []
    workers = await pollers(client, db, ROLLOUT_QUEUE, "workflow")
    if not workers:
        return []
    running = await _processes(client, db, config, workers)
    processes = [process for process in running if named[process.role]]
    answers = await asyncio.gather(
        *(_ask(client, process, named[process.role]) for process in processes)
    )
    return [ExtensionReport(*pair) for pair in zip(processes, answers, strict=True)]


async def require(client: Client, db: Database, config: AnyRun) -> None:
    """Raises UsageError naming every process that cannot import what it needs."""
    lacking = [report for report in await ask(client, db, config) if report.problems]
    if lacking:
        raise UsageError(
            f"{config.kind} {config.name} cannot start, nothing was stored:\n"
            + "\n".join(
                f"  {report.who}: {problem}"
                for report in lacking
                for problem in report.problems or ()
            ),
            remedy=INSTALL,
        )


async def pollers(client: Client, db: Database, queue: str, kind: str) -> list[str]:
    """The identities of the processes that poll the queue for work of the kind "workflow" or
    "activity"."""
    kinds = {
        "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    }
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=kinds[kind],
        ),
        retry=True,
    )
    # Temporal lists one that left for five minutes. This machine's clock may be off.
    since = (await store.now(db)).timestamp() - POLLER_SILENT_S
    return [
        poller.identity
        for poller in described.pollers
        if poller.last_access_time.ToSeconds() > since
    ]


async def _processes(
    client: Client, db: Database, config: AnyRun, workers: Sequence[str]
) -> list[Process]:
    """`workers`: the identities of the rollout workers."""
    processes = [
        Process(ProcessRole.ROLLOUT_WORKER, identity, worker_queue(identity))
        for identity in workers
    ]
    processes += [
        Process(ProcessRole.NODE, node.said.id, node_queue(node.said.id))
        for node in await nodes.list_nodes(db)
        if node.status in (NodeStatus.UP, NodeStatus.DRAINING)
    ]
    waiting = waiting_trainer_queue(campaign_id(config.name))
    processes += [
        Process(ProcessRole.TRAINER, identity, waiting)
        for identity in (await pollers(client, db, waiting, "activity"))[:1]
    ]
    return processes


async def _ask(
    client: Client, process: Process, extensions: Sequence[Extension]
) -> list[str] | None:
    question = ExtensionsInput(queue=process.queue, extensions=list(extensions))
    handle = await client.start_workflow(
        Workflow.EXTENSIONS,
        question,
        id=f"extensions/{process.queue}/{uuid.uuid4()}",
        task_queue=ROLLOUT_QUEUE,
        result_type=ExtensionsResult,
        execution_timeout=timedelta(seconds=ANSWER_TIMEOUT_S),
        static_summary=f"can {process.role} {process.name} import a run's extensions?",
    )
    try:
        if not await _is_taken(handle):
            with suppress(RPCError):  # it was taken just now, and may have completed
                await handle.terminate("no rollout worker takes it")
        return (await handle.result()).problems
    except WorkflowFailureError:
        return None


async def _is_taken(handle: WorkflowHandle[Any, ExtensionsResult]) -> bool:
    """Whether a rollout worker has begun to ask: those that Temporal lists may all have ended."""
    with suppress(TimeoutError, WorkflowFailureError):
        async with asyncio.timeout(SILENT_WORKER_S):
            await handle.result()
    return (await handle.describe()).history_length > NUM_EVENTS_UNTAKEN
