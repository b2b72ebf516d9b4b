"""What a killed node or trainer was doing is tried again once it is back, not after a heartbeat's
time."""

import asyncio
import os
from datetime import timedelta

import psutil
import pytest
from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from cli.operations.machine.embedded_stack import StackInfo
from infra.temporal.connection import connect
from infra.temporal.takeover import end_attempts, has_ended_here, worker_identity
from mainspring.config.settings import load_settings

NAME = "trainer/takeover"
WORKFLOW = "rollout/takeover/0/0"


@workflow.defn(name="takeover-test")
class OneTurn:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(
            "turn",
            task_queue=NAME,
            start_to_close_timeout=timedelta(seconds=600),
            heartbeat_timeout=timedelta(seconds=600),
        )


@activity.defn(name="turn")
async def turn() -> int:
    """Its first attempt never ends, as in a process that was killed."""
    if activity.info().attempt == 1:
        await asyncio.Event().wait()
    return activity.info().attempt


@pytest.mark.parametrize("killed", [NAME, "trainer/another"])
async def test_attempts_of_the_same_name_are_ended(stack: StackInfo, killed: str) -> None:
    settings = load_settings(stack.home)
    dead = await connect(settings, name=worker_identity(killed))
    back = await connect(settings, name=worker_identity(NAME))
    worker = Worker(
        dead,
        task_queue=NAME,
        workflows=[OneTurn],
        activities=[turn],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    handle = await back.start_workflow(OneTurn.run, id=WORKFLOW, task_queue=NAME)
    async with worker:
        async with asyncio.timeout(20):
            while not (pending := (await handle.describe()).raw_description.pending_activities):
                await asyncio.sleep(0.05)
            while not pending[0].last_worker_identity:
                await asyncio.sleep(0.05)
                pending = (await handle.describe()).raw_description.pending_activities
        # An attempt of the process itself, and a rollout that has ended, are left alone.
        assert await end_attempts(dead, "node vm", [WORKFLOW, "rollout/takeover/0/9"]) == 0
        ended = await end_attempts(back, "node vm", [WORKFLOW])
        if killed == NAME:
            assert ended == 1
            async with asyncio.timeout(20):
                assert await handle.result() == 2
            failures = [
                event.activity_task_started_event_attributes.last_failure.message
                for event in (await handle.fetch_history()).events
            ]
            assert "node vm was started again in the middle of this attempt" in failures
        else:
            assert ended == 0
            await handle.terminate()


def test_a_rollout_worker_tells_the_ended_from_the_living_of_its_place() -> None:
    own = worker_identity("rollouts-a")
    unused = max(psutil.pids()) + 100_000
    host = own.partition("@")[2]
    assert has_ended_here(f"{unused}-abc123@{host}", own)
    assert not has_ended_here(f"{os.getppid()}-abc123@{host}", own), "it lives"
    assert has_ended_here(f"{os.getpid()}-abc123@{host}", own), "this program, as it was before"
    assert not has_ended_here(own, own)
    assert not has_ended_here(f"{unused}-abc123@{host}b", own), "another place, unseen from here"
    assert not has_ended_here(f"{unused}@{host.partition(':')[0]}", own), "an older version's name"
