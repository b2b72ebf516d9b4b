"""How workflows call activities: queue, timeouts and retries, decided once by kind of work.

Invariants: Temporal counts no attempts (a drained worker consumes one; `maximum_attempts=1` would
fail the rollout). What bounds the retries is the rule of the fault that an attempt ended with
(`mainspring.status.fates`), and the time that an outage may last.
"""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    TimeoutError,
    TimeoutType,
)

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import NodeId, node_queue
    from mainspring.protocol.activities import In, NodeCall, Out, QueueCall, StoreCall
    from mainspring.protocol.timeouts import (
        DEAD_NODE_TIMEOUT_S,
        PREFER_TIMEOUT_S,
    )
    from mainspring.status import FaultKind
    from mainspring.status.fates import FIRST_WAIT_S, LONGEST_WAIT_S, OUTAGE_S, Fate, rule_of
    from mainspring.words.causes import cause_of, shortened
    from mainspring.words.plain_text import plain

RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=FIRST_WAIT_S),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=LONGEST_WAIT_S),
    maximum_attempts=0,
)
OUTAGE = timedelta(seconds=OUTAGE_S)
"""Beside one attempt's own time: no call waits longer for what does not answer."""
LOCAL_RETRY_THRESHOLD = timedelta(seconds=2)
"""Longer waits between attempts leave the worker's memory and become timers."""
DEAD_NODE_TIMEOUT = timedelta(seconds=DEAD_NODE_TIMEOUT_S)
FAULT_CHARS = 500
END_CHARS = 1000
PREFER_TIMEOUT = timedelta(seconds=PREFER_TIMEOUT_S)


async def store(call: StoreCall[In, Out], payload: In, *, summary: str | None = None) -> Out:
    """A short database call, by the worker that runs the workflow: it costs the server nothing but
    the result. While the database is unreachable, the waits between attempts are durable timers."""
    attempt = timedelta(seconds=call.timeout_s)
    return await workflow.execute_local_activity(
        call.name,
        payload,
        result_type=call.gives,
        schedule_to_close_timeout=OUTAGE + attempt,
        start_to_close_timeout=attempt,
        local_retry_threshold=LOCAL_RETRY_THRESHOLD,
        retry_policy=RETRY,
        summary=summary,
    )


async def anywhere(
    call: QueueCall[In, Out],
    payload: In,
    *,
    own_s: float = 0.0,
    summary: str | None = None,
    cancelled: workflow.ActivityCancellationType = (
        workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    ),
) -> Out:
    """Heartbeating work that any worker of a shared queue may do. `own_s` is the caller's share of
    the seconds of an attempt. `cancelled`: what a cancel waits for."""
    attempt = timedelta(seconds=call.timeout_s + own_s)
    return await workflow.execute_activity(
        call.name,
        payload,
        result_type=call.gives,
        task_queue=call.queue(payload),
        schedule_to_close_timeout=OUTAGE + attempt,
        start_to_close_timeout=attempt,
        heartbeat_timeout=timedelta(seconds=call.heartbeat_timeout_s),
        cancellation_type=cancelled,
        retry_policy=RETRY,
        summary=summary,
    )


async def once_on(node: NodeId, call: QueueCall[In, Out], payload: In, *, summary: str) -> Out:
    """One attempt, on `node`. Fails when the node is full, drains, is dead, or is stopped."""
    return await workflow.execute_activity(
        call.name,
        payload,
        result_type=call.gives,
        task_queue=node_queue(node),
        schedule_to_start_timeout=PREFER_TIMEOUT,
        start_to_close_timeout=timedelta(seconds=call.timeout_s),
        heartbeat_timeout=timedelta(seconds=call.heartbeat_timeout_s),
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=RetryPolicy(maximum_attempts=1),
        summary=summary,
    )


async def on_node(
    call: NodeCall[In, Out],
    payload: In,
    *,
    node: NodeId,
    own_s: float = 0.0,
    summary: str | None = None,
) -> Out:
    """Work in a sandbox of `node`. Fails with a schedule-to-start timeout when the node is dead."""
    attempt = timedelta(seconds=call.timeout_s + own_s)
    return await workflow.execute_activity(
        call.name,
        payload,
        result_type=call.gives,
        task_queue=node_queue(node),
        schedule_to_close_timeout=OUTAGE + attempt,
        schedule_to_start_timeout=DEAD_NODE_TIMEOUT,
        start_to_close_timeout=attempt,
        heartbeat_timeout=timedelta(seconds=call.heartbeat_timeout_s),
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=RETRY,
        summary=summary,
    )


def raise_if_cancelled() -> None:
    """Notice a cancel that arrived during an activity which then ended on its own.

    Waiting for an activity's own end swallows the cancel; without this the workflow would continue.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def raise_if_broken(faults: Iterable[str | None]) -> None:
    """Raises the first, as `broken_by` wrote it: more work would only burn the fleet for rollouts
    that cannot be scored."""
    for broken in faults:
        if broken is not None:
            kind, _, sentence = broken.partition(": ")
            raise ApplicationError(sentence, type=kind, non_retryable=True)


def broken_by(error: BaseException) -> str | None:
    """The fault and its sentence, where it ends the whole campaign."""
    kind = fault_of(error)
    if kind is None or rule_of(kind).fate is not Fate.END:
        return None
    return _text(error)


def fault_of(error: BaseException) -> FaultKind | None:
    """The typed fault a call failed with; a dead node counts as a lost sandbox."""
    if is_dead_node(error):
        return FaultKind.SANDBOX_LOST
    for cause in _causes(error):
        if isinstance(cause, ApplicationError) and cause.type in list(FaultKind):
            return FaultKind(cause.type)
    return None


def is_dead_node(error: BaseException) -> bool:
    """No process polled a node's queue in time."""
    return any(
        isinstance(cause, TimeoutError) and cause.type == TimeoutType.SCHEDULE_TO_START
        for cause in _causes(error)
    )


def end_text(error: BaseException) -> str:
    """One sentence and its remedy, for the row of a campaign that failed."""
    while isinstance(error, FailureError) and error.cause is not None:
        error = error.cause
    message = error.message if isinstance(error, ApplicationError) else cause_of(error)
    return shortened(plain(message), END_CHARS)


def kind_in(fault: str | None) -> FaultKind | None:
    """Kind of a fault as it is stored: its text begins with its kind, or with activity and kind."""
    words = [] if fault is None else fault.split(": ", 2)[:2]
    return next((FaultKind(word) for word in words if word in list(FaultKind)), None)


def fault_text(error: BaseException) -> str:
    """For the rollout's row: which activity, which fault, its sentence and remedy."""
    where = f"{error.activity_type}: " if isinstance(error, ActivityError) else ""
    return shortened(where + _text(error), FAULT_CHARS)


def sentence(error: BaseException) -> str:
    """Sentence on what happened, without kind and remedy."""
    cause = next(_causes(error))
    message = cause.message if isinstance(cause, FailureError) else str(cause)
    return message.partition("\n")[0]


def _text(error: BaseException) -> str:
    return shortened(plain(": ".join(str(cause) for cause in _causes(error))), FAULT_CHARS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The activity's failure, and for a timeout the last failure before it."""
    cause = error.cause or error if isinstance(error, ActivityError) else error
    yield cause
    if isinstance(cause, TimeoutError) and isinstance(cause.cause, FailureError):
        yield cause.cause
