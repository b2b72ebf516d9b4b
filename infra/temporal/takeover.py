"""Ends the attempts of activities that a killed process leaves behind, when the next one of its
name begins.

Temporal would find out by their heartbeats, after `HEARTBEAT_TIMEOUT_S` or more; the next process
knows at once, where only one may have the name: a node by its lock, a trainer by its lease. Rollout
workers share the name of their place, where one sees which of the others have ended. Invariant:
only attempts of another process of the same name are ended, told by the identity that its client
has. An attempt that is missed costs time and nothing else. Imported by the workers.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Collection
from datetime import timedelta

import psutil
import structlog
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

AT_ONCE = 16
RETRY_DELAY = timedelta(milliseconds=50)

log = structlog.get_logger()


def worker_identity(name: str) -> str:
    """Identity of this process, as Temporal shows it: another one after every start, also of one
    program by itself, which keeps its process number. The name begins after the host's."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:6]}@{socket.gethostname()}:{name}"


def has_one_name(identity: str, own: str) -> bool:
    """Whether `identity` is of an earlier process of the name of `own`, which one has at a time."""
    return identity != own and _name(identity) == _name(own)


def has_ended_here(identity: str, own: str) -> bool:
    """Whether `identity` is of a process of the name of `own`, a place's, that has ended."""
    if not has_one_name(identity, own):
        return False
    pid = int(identity.partition("-")[0])
    return pid == os.getpid() or not psutil.pid_exists(pid)  # this one began anew, or it is gone


def _name(identity: str) -> str:
    return identity.partition("@")[2].partition(":")[2]


async def end_attempts(
    client: Client,
    title: str,
    workflow_ids: Collection[str],
    *,
    is_left: Callable[[str, str], bool] = has_one_name,
) -> int:
    """Make Temporal retry what earlier processes had begun for these workflows; how many attempts
    that was. `title`: of the process in messages. `is_left` tells by two identities, an attempt's
    and this process's, whether the attempt is left behind."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def of(workflow_id: str) -> int:
        async with slots:
            try:
                return await _end(client, title, workflow_id, is_left)
            except RPCError as error:
                # The workflow has ended, or Temporal does not answer: timeouts do the same later.
                log.info("left to its heartbeat", workflow=workflow_id, reason=error.message)
                return 0

    return sum(await asyncio.gather(*map(of, workflow_ids)))


async def _end(
    client: Client, title: str, workflow_id: str, is_left: Callable[[str, str], bool]
) -> int:
    handle = client.get_workflow_handle(workflow_id)
    described = await handle.describe()
    ended = 0
    for pending in described.raw_description.pending_activities:
        is_running = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        if is_running and is_left(pending.last_worker_identity, client.identity):
            attempt = client.get_async_activity_handle(
                workflow_id=workflow_id, run_id=described.run_id, activity_id=pending.activity_id
            )
            await attempt.fail(
                ApplicationError(
                    f"{title} was started again in the middle of this attempt",
                    type="WorkerRestarted",
                    next_retry_delay=RETRY_DELAY,
                )
            )
            ended += 1
    return ended
