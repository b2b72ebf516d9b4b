"""Ends the attempts of activities that a killed node leaves behind, when it starts again.

Temporal would find out by their heartbeats, after `HEARTBEAT_TIMEOUT_S`; the next process of the
node knows at once, since a node is one process at a time (`node.lock`). Invariant: only attempts of
another process of the same node are ended, told by the identity that its client has. An attempt
that is missed costs time and nothing else. Imported by the node's worker.
"""

import asyncio
import os
import uuid
from collections.abc import Collection
from datetime import timedelta

import structlog
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from mainspring.ids import NodeId, RolloutId, rollout_workflow

AT_ONCE = 16
RETRY_DELAY = timedelta(milliseconds=50)

log = structlog.get_logger()


def worker_identity(node: NodeId) -> str:
    """Of this process, as Temporal shows it: another one after every start, also of one program by
    itself, which keeps its process number."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:6]}@{node}"


async def end_attempts(client: Client, node: NodeId, rollouts: Collection[RolloutId]) -> int:
    """Make Temporal retry what earlier processes of `node` had begun for these rollouts; how many
    attempts that was."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def of(rollout: RolloutId) -> int:
        async with slots:
            try:
                return await _end(client, node, rollout)
            except RPCError as error:
                # The rollout has ended, or Temporal does not answer: timeouts do the same later.
                log.info("left to its heartbeat", rollout=rollout, reason=error.message)
                return 0

    return sum(await asyncio.gather(*map(of, rollouts)))


async def _end(client: Client, node: NodeId, rollout: RolloutId) -> int:
    handle = client.get_workflow_handle(rollout_workflow(rollout))
    described = await handle.describe()
    ended = 0
    for each in described.raw_description.pending_activities:
        is_running = each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        of_this_node = each.last_worker_identity.endswith(f"@{node}")
        if is_running and of_this_node and each.last_worker_identity != client.identity:
            attempt = client.get_async_activity_handle(
                workflow_id=handle.id, run_id=described.run_id, activity_id=each.activity_id
            )
            await attempt.fail(
                ApplicationError(
                    f"node {node} was started again in the middle of this attempt",
                    type="NodeRestarted",
                    next_retry_delay=RETRY_DELAY,
                )
            )
            ended += 1
    return ended
