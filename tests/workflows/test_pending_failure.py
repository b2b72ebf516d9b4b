"""What Temporal shows of an activity that is tried again is the whole sentence, with its remedy."""

import uuid
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.worker import Worker

from cli.operations.machine.embedded_stack import StackInfo
from infra.sandbox.protocol import ImageUnreachable
from infra.temporal.connection import connect
from infra.temporal.faults import Faults
from mainspring.config.settings import load_settings
from tests.waiting import until

REASON = "image registry.example/task:1 cannot be pulled now: dial tcp: no such host"
REMEDY = "check this node's network"


def deep(levels: int) -> None:
    """Raises with a cause a level, as a request through several libraries does."""
    try:
        if levels:
            deep(levels - 1)
        raise OSError("x" * 200)
    except OSError as error:
        raise OSError("y" * 200) from error


@activity.defn(name="pull")
async def pull() -> None:
    try:
        deep(10)
    except OSError as error:
        raise ImageUnreachable(REASON, remedy=REMEDY) from error


@workflow.defn(name="Pull", sandboxed=False)
class Pull:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity("pull", start_to_close_timeout=timedelta(seconds=60))


async def test_the_remedy_of_a_pending_failure_is_not_cut(stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    queue = f"pending-{uuid.uuid4().hex[:8]}"
    async with Worker(
        client, task_queue=queue, workflows=[Pull], activities=[pull], interceptors=[Faults()]
    ):
        handle = await client.start_workflow("Pull", id=queue, task_queue=queue)

        async def failures() -> list[str]:
            pending = (await handle.describe()).raw_description.pending_activities
            return [each.last_failure.message for each in pending if each.attempt > 1]

        await until(failures)
        assert await failures() == [f"{REASON}\n  {REMEDY}"]
        await handle.terminate()
