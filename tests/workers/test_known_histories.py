"""A rollout's next reply goes to the worker that knows it. One that is killed or stopped between
two turns costs no rollout: the others continue what it played."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from temporalio.api.enums.v1 import EventType, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from cli.bench import loaded_stack as bench
from cli.bench.loaded_stack import Load, LoadedStack, loaded_stack
from mainspring.ids import ROLLOUT_QUEUE, RolloutId, rollout_workflow
from mainspring.protocol.activities import GENERATE
from tests.waiting import until

NUM_ROLLOUTS, NUM_TURNS, NUM_WORKERS = 10, 8, 2
LOAD = Load(NUM_TURNS, 1, 180.0, reply_s=0.3, num_workers=NUM_WORKERS, num_tokens=8_000)


@asynccontextmanager
async def playing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoadedStack]:
    """All rollouts are in the middle; a worker that ends is started again."""
    monkeypatch.setattr(bench, "_refuse_restart", lambda end: None)
    async with loaded_stack(NUM_ROLLOUTS, LOAD) as stack:
        await until(lambda: _all_poll(stack))
        await stack.start(NUM_ROLLOUTS)
        await until(lambda: _are_in_the_middle(stack))
        yield stack


async def _all_poll(stack: LoadedStack) -> bool:
    described = await stack.client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=stack.client.namespace,
            task_queue=TaskQueue(name=ROLLOUT_QUEUE),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    return len({each.identity for each in described.pollers}) == NUM_WORKERS


async def _are_in_the_middle(stack: LoadedStack) -> bool:
    return await stack.num_calls() >= NUM_ROLLOUTS * NUM_TURNS // 3


async def _all_end(stack: LoadedStack) -> None:
    async with asyncio.timeout(LOAD.limit_s):
        while (ends := await stack.ends()).num_ended < NUM_ROLLOUTS:
            await asyncio.sleep(0.1)
    assert ends.num_as_expected == NUM_ROLLOUTS
    assert await stack.num_calls() == NUM_ROLLOUTS * NUM_TURNS


async def _replied(stack: LoadedStack, rollout: RolloutId) -> list[tuple[str, str, int]]:
    """Of each reply: the worker that it came from, the one whose workflow's task asked for it, and
    how many attempts there were."""
    handle = stack.client.get_workflow_handle(rollout_workflow(rollout))
    events = {event.event_id: event async for event in handle.fetch_history_events()}
    found: list[tuple[str, str, int]] = []
    for event in events.values():
        if event.event_type != EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            continue
        started = event.activity_task_started_event_attributes
        asked = events[started.scheduled_event_id].activity_task_scheduled_event_attributes
        if asked.activity_type.name == GENERATE.name:
            task = events[asked.workflow_task_completed_event_id]
            asker = task.workflow_task_completed_event_attributes.identity
            found.append((started.identity, asker, started.attempt))
    return found


async def test_replies_go_to_the_worker_that_knows_the_rollout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with playing(monkeypatch) as stack:
        await _all_end(stack)
        replied = [await _replied(stack, rollout) for rollout in stack.ids]
    assert all(worker == asker for each in replied for worker, asker, _ in each)
    workers = [[worker for worker, _, _ in each] for each in replied]
    assert len({worker for each in workers for worker in each}) == NUM_WORKERS
    # On a machine that stalls for seconds, Temporal gives a workflow to another worker.
    num_moved = sum(one != other for each in workers for one, other in pairwise(each))
    assert stack.reads is not None and stack.reads.num_whole <= num_moved
    assert stack.reads.num_known + stack.reads.num_whole == NUM_ROLLOUTS * (NUM_TURNS - 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_ends_between_two_turns_costs_no_rollout(
    monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    async with playing(monkeypatch) as stack:
        played = [each for rollout in stack.ids for each in await _replied(stack, rollout)]
        ended = played[0][0]
        os.kill(int(ended.partition("-")[0]), how)
        await _all_end(stack)
        replied = [await _replied(stack, rollout) for rollout in stack.ids]
    workers = [[worker for worker, _, _ in each] for each in replied]
    assert any(ended in each and each[-1] != ended for each in workers)
    # Where a rollout went, it stayed.
    assert all(worker == asker for worker, asker, _ in (each[-1] for each in replied))
    if how is signal.SIGTERM:
        # It ends what it has, and nothing is tried again.
        assert {attempt for each in replied for _, _, attempt in each} == {1}
