"""View of a campaign's workflows, queues and nodes: Temporal and the store, read only.

Looks at the campaign's own workflow and its few oldest groups and rollouts: what holds those up
holds up the rest. What it means is said by `mainspring.words.waits`.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowExecutionStatus,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from infra import gateway_addresses
from infra.db import leases, store
from infra.db.database import Database
from infra.db.nodes import engines, nodes
from infra.db.nodes.engines import LOST_AFTER_S, EngineRecord
from infra.db.programs import sessions
from infra.db.reading import rollout_search
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.db.training import trainers
from infra.temporal.service import Namespace
from mainspring.config.settings import Settings, load_settings
from mainspring.ids import campaign_workflow
from mainspring.protocol.names import ASKED_S, NOTICE, AwaitedActivity
from mainspring.protocol.timeouts import LEASE_SILENT_S
from mainspring.words.waits import (
    ENDED,
    GRACE,
    REPLIES,
    Failure,
    Host,
    Pending,
    PendingState,
    Poller,
    Scene,
    Stuck,
    Wait,
)

RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
PAUSED_S = 30.0
"""Loading the weights of a small model takes less."""
LOADS_S = 60.0
"""Loading weights may take minutes where they are large: after this it is told."""
GATEWAY_TIMEOUT_S = 5.0
NUM_OLDEST = 8
"""Rollouts that are looked at."""


async def look(
    db: Database, temporal: Namespace, record: CampaignRecord, home: Path | None = None
) -> Scene:
    """Look at the campaign now. `home`: the folder whose settings hold; None: the usual one. Raises
    RPCError when Temporal does not answer."""
    at = await store.now(db)
    if record.status in ENDED:
        return Scene(record.id, record.kind, record.status, at, is_running=False)
    oldest = await rollout_search.oldest_running(db, record.id, NUM_OLDEST)
    own, *others = await asyncio.gather(
        _describe(temporal, campaign_workflow(record.id)),
        *(_describe(temporal, id) for id in oldest),
    )
    # Its last act is to write its end: one that ended since the row was read is not lost.
    status = record.status if own else (await campaigns.get(db, record.id)).status
    if status in ENDED:
        return Scene(record.id, record.kind, status, at, is_running=False)
    described = [workflow for workflow in (own, *others) if workflow is not None]
    pending = tuple(
        _pending(of, activity, at) for of, raw in described for activity in _activities(raw)
    )
    stuck = tuple(task for of, raw in described if (task := _stuck(of, raw)) is not None)
    queues = {activity.queue for activity in pending if activity.queue}
    polled = await asyncio.gather(
        *(_pollers(temporal, name, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY) for name in queues)
    )
    pollers = dict(zip(queues, polled, strict=True))
    if stuck:
        pollers[record.workflow_queue] = await _pollers(
            temporal, record.workflow_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
        )
    settings = load_settings(home)
    fleet = await engines.members(db, record.id, record.config.policy.engines)
    num_offered, offered_since = await sessions.waiting(db, record.id)
    return Scene(
        campaign=record.id,
        kind=record.kind,
        status=record.status,
        at=at,
        is_running=own is not None,
        workflow_queue=record.workflow_queue,
        retrained_from=record.retrained_from,
        engines=tuple(each.url for each in fleet),
        num_requests=_requests_of(fleet),
        pending=pending,
        stuck=stuck,
        pollers=pollers,
        hosts=tuple(
            Host(
                node.said.id,
                node.status,
                node.said.refusal,
                node.num_open,
                node.said.capacity,
                node.seen_s,
            )
            for node in await nodes.list_nodes(db)
        ),
        num_offered=num_offered,
        offered_since=offered_since,
        processes=(
            *await _paused(record, fleet, pending, at, settings),
            *await _holding(db, record, at),
            *await _silent_gateways(pending, at, settings),
        ),
        is_being_cancelled=own is not None and _is_being_cancelled(own[1]),
        notice="" if own is None else _notice(own[1]),
    )


def _requests_of(fleet: Sequence[EngineRecord]) -> int | None:
    """Requests of engines that all answered a moment ago; None where one did not."""
    if not all(each.seen_s is not None and each.seen_s <= LOST_AFTER_S for each in fleet):
        return None
    return sum(each.load for each in fleet)


def _notice(raw: Any) -> str:
    field = raw.workflow_execution_info.memo.fields.get(NOTICE)
    return "" if field is None else str(json.loads(field.data) or "")


async def _paused(
    record: CampaignRecord,
    fleet: Sequence[EngineRecord],
    pending: Iterable[Pending],
    at: datetime,
    settings: Settings,
) -> tuple[Wait, ...]:
    """Engines that have been paused for long. They are asked while a reply is late: a paused engine
    is healthy by its own word, and keeps the requests."""
    times = [
        activity.since if activity.activity in REPLIES else activity.asked_at
        for activity in pending
        if activity.state is PendingState.STARTED
    ]
    if not any(since is not None and at - since > GRACE for since in times):
        return ()
    policy = record.config.policy
    if not policy.api.gives_tokens:
        return ()
    # Screens look often, and seldom at engines, which load numpy.
    from infra.policy.engines.dialects.choice import dialect_of
    from infra.policy.engines.paused import paused_engines

    key = settings.policy_api_key.get_secret_value()
    spoken = dialect_of(policy.api)
    paused = await paused_engines([each.url for each in fleet], dialect=spoken, api_key=key)
    return tuple(
        Wait(
            f"policy engine {engine.url} is paused"
            + (f", {engine.num_waiting} requests wait in it" if engine.num_waiting else ""),
            engine.remedy,
            None if engine.paused_s is None else at - timedelta(seconds=engine.paused_s),
            rank=1,
        )
        for engine in paused
        if engine.paused_s is None or engine.paused_s > PAUSED_S
    )


async def _holding(db: Database, record: CampaignRecord, at: datetime) -> tuple[Wait, ...]:
    """Processes that hold others up: a trainer that is silent, one that loads weights for long."""
    waits: list[Wait] = []
    trainer = await trainers.holder(db, record.id)
    if trainer is not None and not trainer.released and trainer.silent_s > LEASE_SILENT_S:
        waits.append(
            Wait(
                f"trainer {trainer.owner} does not answer",
                "it ended or stands still: end it (kill -9), and start "
                f"`mainspring worker trainer --campaign {record.id}`",
                at - timedelta(seconds=trainer.silent_s),
            )
        )
    names = leases.publishing(record.id), leases.devices(record.id)
    holders = await leases.holders(db, names)
    loading, training = (holders.get(name) for name in names)
    if training is not None and not training.is_gone:
        step = "the first policy" if record.version is None else f"step {record.version + 1}"
        waits.append(
            Wait(
                f"the engines have given their memory to the trainer for {step}",
                "no request is answered until it is done (trainer.colocate)",
                at - timedelta(seconds=training.held_s),
                rank=2,
            )
        )
    elif loading is not None and loading.held_s > LOADS_S:
        waits.append(
            Wait(
                f"{loading.owner} loads weights into the policy engines",
                "look at its log, and at the engines'; others wait for it",
                at - timedelta(seconds=loading.held_s),
                rank=1,
            )
        )
    return tuple(waits)


async def _silent_gateways(
    pending: Iterable[Pending], at: datetime, settings: Settings
) -> tuple[Wait, ...]:
    """Gateways that take a connection and do not answer, while programs play: their node lives and
    beats, so that nothing else tells of it. One that refuses is started again, or stopped."""
    plays = (activity for activity in pending if activity.activity == AwaitedActivity.RUN_PROGRAM)
    if not any(
        activity.state is PendingState.STARTED and at - activity.since > GRACE for activity in plays
    ):
        return ()
    addresses = gateway_addresses.found(settings)
    silent = [
        address
        for address, answers in zip(
            addresses, await asyncio.gather(*map(_answers, addresses)), strict=True
        )
        if not answers
    ]
    return tuple(
        Wait(
            f"gateway {address} does not answer",
            "its process may stand still: end it (kill -9), and start `mainspring worker gateway`",
            rank=1,
        )
        for address in silent
    )


async def _answers(address: str) -> bool:
    import httpx  # few campaigns have gateways, and it takes long to load

    async with httpx.AsyncClient(timeout=GATEWAY_TIMEOUT_S, trust_env=False) as http:
        try:
            await http.get(f"http://{address}/")
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return True  # nothing listens there, or nothing that this machine can reach
        except httpx.TimeoutException:
            return False
        except httpx.HTTPError:
            return True  # it answered, in words of another protocol
    return True


async def _describe(temporal: Namespace, workflow: str) -> tuple[str, Any] | None:
    """None: it does not run."""
    asked = DescribeWorkflowExecutionRequest(
        namespace=temporal.namespace, execution=WorkflowExecution(workflow_id=workflow)
    )
    try:
        raw = await temporal.workflow_service.describe_workflow_execution(asked, retry=True)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    is_running = raw.workflow_execution_info.status == RUNNING
    return (workflow, raw) if is_running else None


def _is_being_cancelled(raw: Any) -> bool:
    return raw.workflow_extended_info.cancel_requested


def _activities(raw: Any) -> Iterable[Any]:
    return raw.pending_activities


def _pending(of: str, raw: Any, at: datetime) -> Pending:
    started = raw.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    times = (
        [raw.last_started_time]
        if started
        else [raw.scheduled_time, raw.next_attempt_schedule_time, raw.last_attempt_complete_time]
    )
    failure = raw.last_failure if raw.HasField("last_failure") else None
    notes = [payload.data.decode(errors="replace") for payload in raw.heartbeat_details.payloads]
    asked_at = _asked_at(notes[2], _time(raw.last_heartbeat_time)) if len(notes) > 2 else None
    return Pending(
        of=of,
        activity=raw.activity_type.name,
        queue=raw.activity_options.task_queue.name,
        state=PendingState.STARTED if started else PendingState.SCHEDULED,
        attempt=raw.attempt,
        since=max((_time(moment) for moment in times if moment.seconds), default=at),
        failure=None if failure is None else Failure(_kind(failure), _message(failure)),
        note=notes[0].strip('"') if notes else "",
        asked_at=asked_at if started else None,
    )


def _asked_at(note: str, beat_at: datetime) -> datetime | None:
    """Since when an activity of several turns asks for a reply."""
    asked_s = json.loads(note).get(ASKED_S)
    return None if asked_s is None else beat_at - timedelta(seconds=asked_s)


def _kind(failure: Any) -> str:
    return failure.application_failure_info.type


def _message(failure: Any) -> str:
    """Temporal words its own failures shortly; what they are about is their cause."""
    if failure.HasField("cause") and not failure.HasField("application_failure_info"):
        return f"{failure.message}: {failure.cause.message}"
    return failure.message


def _stuck(of: str, raw: Any) -> Stuck | None:
    if not raw.HasField("pending_workflow_task"):
        return None
    task = raw.pending_workflow_task
    since = task.original_scheduled_time if task.attempt > 1 else task.scheduled_time
    started = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
    return Stuck(of, _time(since), task.attempt, started)


async def _pollers(
    temporal: Namespace, queue: str, kind: "TaskQueueType.ValueType"
) -> tuple[Poller, ...]:
    described = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        ),
        retry=True,
    )
    return tuple(
        Poller(poller.identity, _time(poller.last_access_time)) for poller in described.pollers
    )


def _time(stamp: Timestamp) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(
        seconds=stamp.seconds, microseconds=stamp.nanos // 1000
    )
