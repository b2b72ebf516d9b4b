"""Where errors become typed Temporal failures that name what failed: the one place that classifies.

`Faults` stands around every activity of every worker. It turns each exception that leaves one into
an ApplicationError whose type is the error's FaultKind, whose message has the remedy, and which is
final when the rule of `mainspring.status.fates` makes it so. Invariant: what a drained or killed
worker did not finish is never final.
"""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from infra.db.cache import FactCache
from infra.db.nodes.sandboxes import CampaignFull
from mainspring.errors import MainspringError, SandboxError
from mainspring.ids import NodeId, RolloutId, SandboxId
from mainspring.status import FaultKind
from mainspring.status.fates import FIRST_WAIT_S, rule_of, waits_s
from mainspring.words.causes import cause_of, is_out_of_memory, own_log, shortened
from mainspring.words.plain_text import plain

log = structlog.get_logger(__name__)

MESSAGE_CHARS = 1000
REMEDY_CHARS = 400
"""Both together stay below what the server keeps of a pending activity's failure."""
JITTER = 0.25
"""Waits of those that are told the same time differ by this part: they must not all come back at
once."""


class SandboxDiverged(MainspringError):
    """A replayed command did not do what it did the first time."""

    fault = FaultKind.SANDBOX_DIVERGED


class NodeFull(MainspringError):
    """A node was asked to open a sandbox that it does not take."""

    fault = FaultKind.NODE_FULL
    retry_after_s = 0.2
    """Before another node is offered the open; nodes with room ask at once."""


class Faults(Interceptor):
    """Interceptor of a worker: `Worker(..., interceptors=[Faults()])`."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Classifying(super().intercept_activity(next))


class _Classifying(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        start = time.monotonic()
        try:
            return await super().execute_activity(input)
        except FailureError:  # a cancel, or classified already
            raise
        except Exception as error:
            info = activity.info()
            waited_s = _scheduled_s(info) + time.monotonic() - start
            fault = failure(
                error,
                attempt=info.attempt,
                waited_s=waited_s,
                is_cancelled=activity.is_cancelled(),
            )
            if fault.type == FaultKind.UNEXPECTED:
                log.error("an activity failed", attempt=info.attempt, exc_info=error)
            # In the place of a pending activity's failure above 2 KB, stack traces of its causes
            # included, the server puts a sentence of its own. The log has the traceback.
            raise fault from None


def _scheduled_s(info: activity.Info) -> float:
    """From the first schedule to the start of this attempt, at least. Both times are the server's:
    this machine's clock may be off by hours."""
    measured_s = (info.started_time - info.scheduled_time).total_seconds()
    # After a wait that is a timer of the workflow, a local activity is scheduled anew.
    return max(measured_s, waits_s(info.attempt)) if info.is_local else measured_s


def kind_of(error: Exception) -> FaultKind:
    if isinstance(error, MainspringError):
        return error.fault
    if is_out_of_memory(error):
        return FaultKind.OUT_OF_MEMORY
    return FaultKind.TEMPORAL_UNREACHABLE if isinstance(error, RPCError) else FaultKind.UNEXPECTED


def wait_before_retry_s(error: Exception) -> float | None:
    """When to try again what failed for the first time; None: not at all."""
    if isinstance(error, FailureError) or rule_of(kind_of(error)).is_final(1, 0.0):
        return None
    wait_s = error.retry_after_s if isinstance(error, MainspringError) else None
    return (wait_s or FIRST_WAIT_S) * random.uniform(1.0, 1.0 + JITTER)


def failure(
    error: Exception, *, attempt: int, waited_s: float, is_cancelled: bool = False
) -> ApplicationError:
    """The failure that Temporal is told for `error`. One that a cancel or a drain may have caused
    is tried again where anybody still waits for it."""
    kind = kind_of(error)
    rule = rule_of(kind)
    is_known = isinstance(error, MainspringError)
    message = plain(error.message) if is_known else _of_unknown(error, kind)
    remedy = plain(error.remedy) if is_known and error.remedy else rule.remedy
    message = f"{shortened(message, MESSAGE_CHARS)}\n  {shortened(remedy, REMEDY_CHARS)}"
    wait_s = error.retry_after_s if is_known else None
    return ApplicationError(
        message,
        type=kind,
        non_retryable=rule.is_final(attempt, waited_s) and not is_cancelled,
        next_retry_delay=timedelta(seconds=wait_s * random.uniform(1.0, 1.0 + JITTER))
        if wait_s
        else None,
        category=ApplicationErrorCategory.BENIGN
        if rule.benign
        else ApplicationErrorCategory.UNSPECIFIED,
    )


def _of_unknown(error: Exception, kind: FaultKind) -> str:
    """Class and message, and the file that has the traceback."""
    description = cause_of(error)
    if kind is FaultKind.OUT_OF_MEMORY:
        description = f"out of memory: {description}"
    file = own_log()
    return f"{description} (its traceback: {file})" if file else description


@asynccontextmanager
async def naming(
    cache: FactCache, node: NodeId, rollout: RolloutId, sandbox: SandboxId
) -> AsyncIterator[None]:
    """Add to every error about the sandbox which it was, on which node, for which task."""
    try:
        yield
    except CampaignFull:
        raise
    except (SandboxError, SandboxDiverged) as error:
        task = (await cache.rollout(rollout)).task.id
        names = (f"task {task}", f"sandbox {sandbox}", f"node {node}")
        where = ", ".join(name for name in names if name not in error.message)
        message = f"{where}: {error.message}" if where else error.message
        raise type(error)(message, remedy=error.remedy) from error
