"""Rollout workers of two releases share a queue: a workflow that a patch guards survives each
change of its worker, there and back."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from changing_workflows import NewerWorkflow, OlderWorkflow, added, first
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from cli.operations.machine.embedded_stack import StackInfo
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from tests.waiting import until

FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
DECIDED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
ENDED = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED


SOON = timedelta(seconds=1)
"""How long the server keeps a task for the worker that has the workflow in memory."""


def older(client: Client, queue: str) -> Worker:
    return worker(client, queue, OlderWorkflow, first)


def newer(client: Client, queue: str) -> Worker:
    return worker(client, queue, NewerWorkflow, first, added)


def worker(
    client: Client, queue: str, changing: type, *activities: Callable[..., object]
) -> Worker:
    return Worker(
        client,
        task_queue=queue,
        workflows=[changing],
        activities=activities,
        workflow_runner=UnsandboxedWorkflowRunner(),
        sticky_queue_schedule_to_start_timeout=SOON,
    )


def has_events(
    handle: WorkflowHandle[NewerWorkflow, list[str]], kind: EventType.ValueType, number: int
) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return [each.event_type async for each in handle.fetch_history_events()].count(
            kind
        ) >= number

    return has


async def test_a_workflow_of_the_older_worker_is_ended_by_the_newer_one(stack: StackInfo) -> None:
    client, queue = await connect(load_settings(stack.home)), "changed-forward"
    async with older(client, queue):
        handle = await client.start_workflow(NewerWorkflow.run, id=queue, task_queue=queue)
        await until(has_events(handle, DECIDED, 2))
    async with newer(client, queue):
        await handle.signal(NewerWorkflow.proceed)
        assert await handle.result() == ["first"], "decided before there was the call"


async def test_a_workflow_of_the_newer_worker_waits_for_one_and_does_not_fail_at_an_older_one(
    stack: StackInfo,
) -> None:
    client, queue = await connect(load_settings(stack.home)), "changed-back"
    async with newer(client, queue):
        handle = await client.start_workflow(NewerWorkflow.run, id=queue, task_queue=queue)
        await until(has_events(handle, ENDED, 2))
    async with older(client, queue):
        await handle.signal(NewerWorkflow.proceed)
        await until(has_events(handle, FAILED, 1))
        described = await handle.describe()
        assert described.status is WorkflowExecutionStatus.RUNNING
        # Over a connection of its own: one has one worker of a queue.
        async with newer(await connect(load_settings(stack.home)), queue):
            assert await handle.result() == ["first", "added"]
