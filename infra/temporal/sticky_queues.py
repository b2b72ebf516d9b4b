"""Frees workflows from the queue of a worker that was killed, when a worker of their kind begins.

Temporal gives the tasks of a workflow to the worker that has it cached, on a queue of that worker's
own, and after a kill waits the whole sticky timeout for it: rollout, group and campaign each, one
after the other. Temporal does not tell which worker has a workflow cached, so those of living
workers are freed as well: the next task of each reads its history again, and costs that alone.
Tasks that wait on such a queue already are given back, where the worker that it belonged to ran on
this machine and has ended.
Invariants: bounded in number and time; a failure costs the waits and nothing else. Imported by the
rollout worker.
"""

import asyncio
import socket
from collections.abc import Iterable
from datetime import timedelta

import psutil
import structlog
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, TaskQueueKind, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryReverseRequest,
    PollWorkflowTaskQueueRequest,
    ResetStickyTaskQueueRequest,
    RespondWorkflowTaskFailedRequest,
    ShutdownWorkerRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from mainspring.protocol.names import Workflow

MOST = 200
"""A thousand rollouts would read their histories again at the same time."""
AT_ONCE = 16
TIMEOUT_S = 10.0
"""Limit of all calls together: later the server gives up a silent worker's queue by itself."""
CALL_TIMEOUT = timedelta(seconds=3)
NEWEST_EVENTS = 20
"""Signals and ends of children may have come after the task was put into its queue."""
POLLERS = 8
"""That take tasks from the queue of a killed worker at the same time."""
POLL_TIMEOUT = timedelta(seconds=3)
"""Temporal refuses polls below 2 s, and answers an empty queue a second before the end."""

FREED, LEFT = "freed", "left"
"""Outcomes for a workflow of which no task waits. Names of queues have an @."""

log = structlog.get_logger()


async def free_workflows(client: Client, task_queue: str, most: int = MOST) -> int:
    """Give the next tasks of at most `most` running workflows to any worker of `task_queue`; how
    many that were. Never raises what Temporal answers."""
    slots, freed = asyncio.Semaphore(AT_ONCE), 0
    try:
        async with asyncio.timeout(TIMEOUT_S):
            runs = await _running(client, task_queue, most)
            dead: dict[str, list[asyncio.Task[int]]] = {}
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(_free(client, slots, run)) for run in runs]
                for look in asyncio.as_completed(looks):
                    # At once, not after the other looks: on a busy machine these take seconds.
                    if (name := await look) not in (FREED, LEFT, *dead) and _is_of_the_dead(name):
                        give_back = (_give_back(client, task_queue, name) for _ in range(POLLERS))
                        dead[name] = [group.create_task(poller) for poller in give_back]
            if freed := [look.result() for look in looks].count(FREED):
                log.info("sticky queues reset", num=freed)
            for name, pollers in dead.items():
                num_tasks = sum(poller.result() for poller in pollers)
                log.info("workflow tasks given back", queue=name, num=num_tasks)
                freed += num_tasks
                await _shut_down(client, name)
    except* (RPCError, TimeoutError) as errors:
        reason = str(errors.exceptions[0]) or f"not done after {TIMEOUT_S:.0f} s"
        log.info("sticky queues are left to their timeout", reason=reason)
    return freed


async def _running(client: Client, task_queue: str, most: int) -> list[WorkflowExecution]:
    running = f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running' AND WorkflowType"
    executions: list[WorkflowExecution] = []
    # Rollouts wait for few, and many wait for a campaign, which is older than all of them.
    for condition in (f"{running} != '{Workflow.ROLLOUT}'", f"{running} = '{Workflow.ROLLOUT}'"):
        if len(executions) < most:
            async for workflow in client.list_workflows(condition, limit=most - len(executions)):
                executions.append(
                    WorkflowExecution(workflow_id=workflow.id, run_id=workflow.run_id)
                )
    return executions


async def _free(client: Client, slots: asyncio.Semaphore, run: WorkflowExecution) -> str:
    """FREED; or the worker's own queue on which a task of the workflow waits: a reset would make
    Temporal drop this task, and schedule it again only after the sticky timeout."""
    service = client.workflow_service
    history = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace, execution=run, maximum_page_size=NEWEST_EVENTS
    )
    reset = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=run)
    async with slots:
        try:
            newest = await service.get_workflow_execution_history_reverse(
                history, timeout=CALL_TIMEOUT
            )
            if name := _waits_on(newest.history.events):
                return name
            await service.reset_sticky_task_queue(reset, timeout=CALL_TIMEOUT)
        except RPCError as error:
            log.debug("left to its timeout", workflow=run.workflow_id, reason=error.message)
            return LEFT
    return FREED


def _waits_on(newest_first: Iterable[HistoryEvent]) -> str | None:
    """The worker's own queue on which the next task of a workflow waits."""
    for event in newest_first:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            return None
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
            queue = event.workflow_task_scheduled_event_attributes.task_queue
            return queue.name if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY else None
    return None


def _is_of_the_dead(name: str) -> bool:
    """Whether the queue's worker was a process of this machine that has ended: the SDK names a
    queue pid@host-random."""
    pid, _, host = name.rpartition("-")[0].partition("@")
    return host == socket.gethostname() and pid.isdecimal() and not psutil.pid_exists(int(pid))


async def _give_back(client: Client, task_queue: str, name: str) -> int:
    """Take tasks from the queue `name` until it is empty, and fail each; how many that were. SDKs
    do so with a task whose workflow they do not have cached any more: Temporal puts it into
    `task_queue` at once."""
    service, num_tasks = client.workflow_service, 0
    ask = service.poll_workflow_task_queue
    kind = TaskQueueKind.TASK_QUEUE_KIND_STICKY
    poll = PollWorkflowTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=name, kind=kind, normal_name=task_queue),
        identity=client.identity,
    )
    try:
        while task := (await ask(poll, timeout=POLL_TIMEOUT)).task_token:
            failed = RespondWorkflowTaskFailedRequest(
                namespace=client.namespace,
                task_token=task,
                cause=WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
                identity=client.identity,
            )
            await service.respond_workflow_task_failed(failed, timeout=CALL_TIMEOUT)
            num_tasks += 1
    except RPCError as error:
        log.debug("left to its timeout", queue=name, reason=error.message)
    return num_tasks


async def _shut_down(client: Client, name: str) -> None:
    """For 10 s after a poll the server would take the queue for one whose worker lives."""
    ended = ShutdownWorkerRequest(
        namespace=client.namespace, sticky_task_queue=name, identity=client.identity
    )
    await client.workflow_service.shutdown_worker(ended, timeout=CALL_TIMEOUT)
