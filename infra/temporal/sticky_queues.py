"""Frees workflows from the queue of a worker that was killed, when a worker of their kind begins.

Temporal gives the tasks of a workflow to the worker that has it cached, on a queue of that worker's
own, and after a kill waits the whole sticky timeout for it: rollout, group and campaign each, one
after the other. Temporal does not tell which worker has a workflow cached, so those of living
workers are freed as well: the next task of each reads its history again, and costs that alone.
Invariants: bounded in number and time; a failure costs the waits and nothing else. Imported by the
rollout worker.
"""

import asyncio
from datetime import timedelta

import structlog
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from mainspring.protocol.names import Workflow

MOST = 200
"""A thousand rollouts would read their histories again at the same time."""
AT_ONCE = 16
TIMEOUT_S = 10.0
"""Of all calls together: later the server gives up a silent worker's queue by itself."""
CALL_TIMEOUT = timedelta(seconds=3)

log = structlog.get_logger()


async def free_workflows(client: Client, task_queue: str, most: int = MOST) -> int:
    """Give the next tasks of at most `most` running workflows to any worker of `task_queue`; how
    many that were. Never raises what Temporal answers."""
    slots = asyncio.Semaphore(AT_ONCE)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            runs = await _running(client, task_queue, most)
            freed = sum(await asyncio.gather(*(_free(client, slots, run) for run in runs)))
    except (RPCError, TimeoutError) as error:
        reason = str(error) or f"not done after {TIMEOUT_S:.0f} s"
        log.info("sticky queues are left to their timeout", reason=reason)
        return 0
    if freed:
        log.info("sticky queues reset", num=freed)
    return freed


async def _running(client: Client, task_queue: str, most: int) -> list[WorkflowExecution]:
    running = f"TaskQueue = '{task_queue}' AND ExecutionStatus = 'Running' AND WorkflowType"
    found: list[WorkflowExecution] = []
    # Rollouts wait for few, and many wait for a campaign, which is older than all of them.
    for others in (f"{running} != '{Workflow.ROLLOUT}'", f"{running} = '{Workflow.ROLLOUT}'"):
        if len(found) < most:
            async for each in client.list_workflows(others, limit=most - len(found)):
                found.append(WorkflowExecution(workflow_id=each.id, run_id=each.run_id))
    return found


async def _free(client: Client, slots: asyncio.Semaphore, run: WorkflowExecution) -> bool:
    async with slots:
        try:
            await client.workflow_service.reset_sticky_task_queue(
                ResetStickyTaskQueueRequest(namespace=client.namespace, execution=run),
                timeout=CALL_TIMEOUT,
            )
        except RPCError as error:
            log.debug("left to its timeout", workflow=run.workflow_id, reason=error.message)
            return False
    return True
