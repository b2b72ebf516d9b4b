"""`mainspring bench nodes`: whether idle nodes leave a Temporal server room to reach each of them.

A fake node is the three workers of a real one, with its polls and an activity that does nothing.
Each round starts one activity on each node's own queue and as many on a shared one. An activity
that no poll takes within DEAD_NODE_TIMEOUT_S makes a campaign take the node for dead.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from cli.operations.machine.embedded_stack import temporary
from infra.temporal.connection import connect
from infra.temporal.log import CORE_LOGGER
from mainspring.config.settings import load_settings
from mainspring.ids import GRADE_QUEUE, SANDBOX_QUEUE, NodeId, node_queue
from mainspring.protocol.timeouts import DEAD_NODE_TIMEOUT_S
from workers.polling import NODE_POLLERS, node_worker, workflow_runner

NUM_ROUNDS = 4
BETWEEN_S = 5.0
SETTLED_S = 10.0
"""Until the polls of all nodes are there."""
QUEUE = "bench-nodes"


@activity.defn
async def nothing() -> float:
    """Seconds from its scheduling to its start, by the server's clock."""
    info = activity.info()
    return (info.started_time - info.current_attempt_scheduled_time).total_seconds()


@workflow.defn
class OneActivity:
    @workflow.run
    async def run(self, queue: str) -> float:
        return await workflow.execute_activity(
            nothing,
            task_queue=queue,
            schedule_to_start_timeout=timedelta(seconds=DEAD_NODE_TIMEOUT_S),
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


async def measure(
    say: Callable[[str], None], *, num_nodes: int, polls: int | None = None
) -> dict[str, Any]:
    """nodes, polls (None: as nodes scale them), refused (refusals that the SDK told: from a poll's
    sixth in a row on), starts, start_p50_s, start_p99_s and start_max_s of the activities that
    started, and taken_for_dead: those that no node took in time. On a stack of its own, which is
    removed."""
    async with temporary("mainspring-bench-") as stack:
        refusals, log = _Refusals(), logging.getLogger(CORE_LOGGER)
        log.addHandler(refusals)
        log.propagate = False  # tens of thousands of lines
        settings = load_settings(stack.home)
        client = await connect(settings)
        behavior = NODE_POLLERS if polls is None else PollerBehaviorSimpleMaximum(polls)
        queues = [node_queue(NodeId(f"bench-{number}")) for number in range(num_nodes)]
        nodes = [
            node_worker(node, polls=behavior, task_queue=queue, activities=[nothing])
            # A client has one worker of a queue.
            for own, node in [(queue, await connect(settings)) for queue in queues]
            for queue in (own, SANDBOX_QUEUE, GRADE_QUEUE)
        ]
        driver = Worker(
            client, task_queue=QUEUE, workflows=[OneActivity], workflow_runner=workflow_runner()
        )
        say(f"{num_nodes} nodes start")
        polling = [asyncio.create_task(worker.run()) for worker in (driver, *nodes)]
        try:
            await asyncio.sleep(SETTLED_S)
            waits: list[float | None] = []
            for number in range(NUM_ROUNDS):
                say(f"round {number + 1} of {NUM_ROUNDS}")
                all_queues = [*queues, *([SANDBOX_QUEUE] * num_nodes)]
                waits += await asyncio.gather(
                    *(_wait_s(client, queue, f"{number}-{n}") for n, queue in enumerate(all_queues))
                )
                await asyncio.sleep(BETWEEN_S)
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in (driver, *nodes)))
            await asyncio.gather(*polling)
            log.propagate = True
            log.removeHandler(refusals)
        return _figures(num_nodes, polls, refusals.num_told, waits)


class _Refusals(logging.Handler):
    """Counts the refusals that the SDK tells: from a poll's sixth in a row on."""

    def __init__(self) -> None:
        super().__init__()
        self.num_told = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.num_told += "limit exceeded" in record.getMessage()


async def _wait_s(client: Client, queue: str, name: str) -> float | None:
    """None: nothing took the activity in time."""
    try:
        return await client.execute_workflow(
            OneActivity.run, queue, id=f"bench-{name}", task_queue=QUEUE
        )
    except WorkflowFailureError:
        return None


def _figures(
    num_nodes: int, polls: int | None, refused: int, waits: list[float | None]
) -> dict[str, Any]:
    started = [wait for wait in waits if wait is not None]
    shares = np.percentile(started, [50, 99, 100]).round(3).tolist() if started else [None] * 3
    p50, p99, largest = shares
    return {
        "nodes": num_nodes,
        "polls": polls,
        "refused": refused,
        "starts": len(started),
        "start_p50_s": p50,
        "start_p99_s": p99,
        "start_max_s": largest,
        "taken_for_dead": len(waits) - len(started),
    }
