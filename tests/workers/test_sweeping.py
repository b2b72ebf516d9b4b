"""The schedule: made once, however often, followed by real sweeps."""

import asyncio
from datetime import timedelta

from temporalio.client import Client, ScheduleActionExecutionStartWorkflow
from temporalio.worker import Worker

from activities.sweep import SweepActivities
from infra.db.database import Database
from infra.stack.stack import StackInfo
from infra.temporal import connect
from mainspring.ids import ROLLOUT_QUEUE
from mainspring.protocol.sweep import SweepResult
from mainspring.settings import load_settings
from tests.sandboxed import SANDBOXED
from tests.waiting import DEADLINE_S
from workers.sweeping import SCHEDULE, ensure_schedule
from workflows.sweep import SweepWorkflow


async def interval(client: Client) -> timedelta:
    described = await client.get_schedule_handle(SCHEDULE).describe()
    [found] = described.schedule.spec.intervals
    return found.every


async def test_any_number_of_workers_make_one_schedule_that_sweeps(stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    handle = client.get_schedule_handle(SCHEDULE)
    await asyncio.gather(*(ensure_schedule(client) for _ in range(4)))
    try:
        assert await interval(client) == timedelta(minutes=1)
        await handle.pause(note="a person")
        await ensure_schedule(client, timedelta(hours=1))
        assert await interval(client) == timedelta(hours=1)
        assert (await handle.describe()).schedule.state.paused
        async with (
            Database.open(stack.database_url) as db,
            Worker(
                client,
                task_queue=ROLLOUT_QUEUE,
                workflows=[SweepWorkflow],
                workflow_runner=SANDBOXED,
                activities=[SweepActivities(db, client).sweep],
            ),
        ):
            await handle.trigger()
            result = await asyncio.wait_for(_next_result(client), DEADLINE_S)
        assert result.num_leases_lost == 0
    finally:
        await handle.delete()


async def _next_result(client: Client) -> SweepResult:
    handle = client.get_schedule_handle(SCHEDULE)
    while True:
        actions = (await handle.describe()).info.recent_actions
        if actions:
            action = actions[-1].action
            assert isinstance(action, ScheduleActionExecutionStartWorkflow)
            run = client.get_workflow_handle(action.workflow_id, result_type=SweepResult)
            return await run.result()
        await asyncio.sleep(0.1)
