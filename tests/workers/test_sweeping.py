"""Any number of workers sweep once a minute, without a workflow that would wait for workers."""

import asyncio
import os
import sys
from datetime import timedelta

from sqlalchemy import text
from structlog.testing import capture_logs
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
)

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.runs import events
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.ids import NodeId
from mainspring.status import EventKind
from tests.waiting import until
from workers.sweeping import OLD_SCHEDULE, Sweeping


async def test_of_many_workers_one_sweeps_within_an_interval(stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    async with Database.open(stack.database_url) as db:
        await forget_last_sweep(db)
        workers = [Sweeping(db, client) for _ in range(4)]
        with capture_logs() as logs:
            took = await asyncio.gather(*(worker.sweep_in_turn() for worker in workers))
            took += [await worker.sweep_in_turn() for worker in workers]
        assert sum(took) == 1
        assert [each["event"] for each in logs] == ["swept"]
        assert "num_rollouts_alive" in logs[0]
        assert await Sweeping(db, client, every=timedelta(0)).sweep_in_turn()


async def test_a_rollout_worker_sweeps_and_leaves_no_workflow_behind(stack: StackInfo) -> None:
    settings = load_settings(stack.home)
    client = await connect(settings)
    await make_old_schedule(client)
    async with Database.open(stack.database_url) as db:
        await forget_last_sweep(db)
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "worker", "rollout", "--home", str(stack.home)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ,
        )
        try:

            async def has_swept() -> bool:
                async with db.transaction() as connection:
                    return await connection.scalar(text("SELECT swept_at FROM store")) is not None

            await until(has_swept)
        finally:
            worker.terminate()
            await worker.wait()
    assert [each.id async for each in await client.list_schedules()] == []
    assert (await client.count_workflows("WorkflowType = 'sweep'")).count == 0


async def test_a_node_is_lost_when_it_is_silent_at_two_looks(stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    async with Database.open(stack.database_url) as db:
        node = NodeId("silent-node")
        beat = nodes.NodeBeat(node, 1, 0, None, [], [], 1, 1, "1", running_s=1.0, clock=None)
        aged = text("UPDATE nodes SET seen_at = now() - interval '1 minute' WHERE id = :id")

        async def falls_silent() -> None:
            await nodes.beat(db, beat)
            async with db.transaction() as connection:
                await connection.execute(aged, {"id": node})

        async def num_told() -> int:
            found = await events.newest(db, kinds=[EventKind.NODE_LOST])
            return len([event for event in found if event.subject == node])

        workers = [Sweeping(db, client) for _ in range(2)]
        await falls_silent()
        for worker in workers:
            await worker.tell_lost_nodes()
        await nodes.beat(db, beat)  # the database was away, and the node was not
        for worker in workers:
            await worker.tell_lost_nodes()
        assert await num_told() == 0
        for number in (1, 2):
            await falls_silent()
            for worker in workers * 3:
                await worker.tell_lost_nodes()
            assert await num_told() == number
        await nodes.say_goodbye(db, node)


async def forget_last_sweep(db: Database) -> None:
    async with db.transaction() as connection:
        await connection.execute(text("UPDATE store SET swept_at = NULL"))


async def make_old_schedule(client: Client) -> None:
    action = ScheduleActionStartWorkflow("sweep", id="sweep", task_queue="rollout")
    never = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=365))])
    await client.create_schedule(OLD_SCHEDULE, Schedule(action=action, spec=never))
