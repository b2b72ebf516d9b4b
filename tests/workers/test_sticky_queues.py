"""Workflows that a killed worker had cached do not wait for it once another worker begins."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from sticky_worker import Counting
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from cli.operations.machine.embedded_stack import StackInfo
from infra.temporal import sticky_queues
from infra.temporal.connection import connect
from infra.temporal.sticky_queues import free_workflows
from mainspring.config.settings import load_settings
from mainspring.ids import ROLLOUT_QUEUE
from tests.polling import rollout_worker
from tests.waiting import until

NUM = 3


async def task_queues(handle: WorkflowHandle) -> list[int]:
    """Whose queue each task of the workflow was put into: its worker's own one, or all workers'."""
    return [
        event.workflow_task_scheduled_event_attributes.task_queue.kind
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED
    ]


async def are_listed(client: Client, task_queue: str, num: int) -> bool:
    query = f"TaskQueue = '{task_queue}' AND WorkflowType = 'counting'"
    query += " AND ExecutionStatus = 'Running'"
    return (await client.count_workflows(query)).count == num


async def sticky_worker(*words: str) -> asyncio.subprocess.Process:
    script = Path(__file__).with_name("sticky_worker.py")
    return await asyncio.create_subprocess_exec(sys.executable, str(script), *words)


def living_worker(client: Client, task_queue: str) -> Worker:
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[Counting],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


async def test_the_next_tasks_are_for_any_worker(stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    async with living_worker(client, "sticky-queues"):
        handles = [
            await client.start_workflow(
                Counting.run, id=f"counting/{n}", task_queue="sticky-queues"
            )
            for n in range(NUM)
        ]
        for handle in handles:
            await handle.execute_update(Counting.add)
            # The worker has it cached: further tasks go there.
            await handle.execute_update(Counting.add)
            assert (await task_queues(handle))[-1] == TaskQueueKind.TASK_QUEUE_KIND_STICKY
        await until(lambda: are_listed(client, "sticky-queues", NUM))
        assert await free_workflows(client, "another-queue") == 0
        assert await free_workflows(client, "sticky-queues", most=2) == 2
        assert await free_workflows(client, "sticky-queues") == NUM
        for handle in handles:
            await handle.signal(Counting.finish)
            assert await handle.result() == 2
            assert (await task_queues(handle))[-1] == TaskQueueKind.TASK_QUEUE_KIND_NORMAL


async def test_tasks_that_wait_for_a_killed_worker_are_given_back(stack: StackInfo) -> None:
    settings = load_settings(stack.home)
    client = await connect(settings)
    killed = await sticky_worker(settings.temporal_address, client.namespace, "given-back")
    handles = [
        await client.start_workflow(Counting.run, id=f"counting/back-{n}", task_queue="given-back")
        for n in range(NUM)
    ]
    for handle in handles:
        await handle.execute_update(Counting.add)
        await handle.execute_update(Counting.add)
    await until(lambda: are_listed(client, "given-back", NUM))
    os.kill(killed.pid, signal.SIGKILL)
    await killed.wait()
    *waiting, idle = handles
    for handle in waiting:
        await handle.signal(Counting.finish)
        assert (await task_queues(handle))[-1] == TaskQueueKind.TASK_QUEUE_KIND_STICKY
    with capture_logs() as logs:
        assert await free_workflows(client, "given-back") == NUM
    nums = {each["event"]: each["num"] for each in logs}
    assert nums == {"sticky queues reset": 1, "workflow tasks given back": NUM - 1}
    await idle.signal(Counting.finish)
    async with living_worker(client, "given-back"):
        for handle in handles:
            assert await handle.result() == 2
            events = [event async for event in handle.fetch_history_events()]
            kinds = {event.event_type for event in events}
            assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT not in kinds
            assert (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED in kinds) is (handle is not idle)


async def test_a_server_that_does_not_answer_costs_the_waits_alone(
    stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(load_settings(stack.home))
    monkeypatch.setattr(sticky_queues, "TIMEOUT_S", 0.0)
    with capture_logs() as logs:
        assert await free_workflows(client, "sticky-queues") == 0
    assert [each["log_level"] for each in logs] == ["info"]


async def test_a_rollout_worker_frees_what_a_killed_one_had(
    stack: StackInfo, tmp_path: Path
) -> None:
    settings = load_settings(stack.home)
    client = await connect(settings)
    killed = await sticky_worker(settings.temporal_address, client.namespace, ROLLOUT_QUEUE)
    handle = await client.start_workflow(Counting.run, id="counting/x", task_queue=ROLLOUT_QUEUE)
    try:
        await handle.execute_update(Counting.add)
        await handle.execute_update(Counting.add)
        await until(lambda: are_listed(client, ROLLOUT_QUEUE, 1))
        os.kill(killed.pid, signal.SIGKILL)
        await killed.wait()
        addresses = {
            "DATABASE_URL": stack.database_url,
            "TEMPORAL_ADDRESS": settings.temporal_address,
            "TEMPORAL_NAMESPACE": client.namespace,
        }
        async with rollout_worker(tmp_path, **addresses):
            log = tmp_path / "logs" / "worker.log"
            await until(lambda: "sticky queues reset" in log.read_text())
            # Of its kind this worker knows nothing: what counts is that it is asked at once.
            await handle.signal(Counting.finish)
        assert (await task_queues(handle))[-1] == TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    finally:
        await handle.terminate()
