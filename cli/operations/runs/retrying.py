"""Retry rollouts: what `mainspring rollout retry` does, for one or for many.

A rollout whose workflow Temporal still knows and whose group is open is reset to its beginning: its
sandbox is closed, a new history begins, and the group waits for it. One of an evaluation,
verification or regrade that has ended is given back to its run, which is started again for it. A
rollout of a closed training group is final: its step may have used it.
"""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts
from infra.db.rollouts.rollouts import RolloutRecord
from infra.db.runs import campaigns, events
from infra.db.runs.campaigns import CampaignRecord
from infra.db.runs.events import person
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, GroupId, RolloutId, rollout_workflow
from mainspring.status import CampaignKind, EventKind, GroupKind, GroupStatus, RolloutPhase

REASON = "mainspring rollout retry"
NUM_NAMED = 5
"""Final rollouts that a message names."""


@dataclass(slots=True)
class Retried:
    reset: list[RolloutId] = field(default_factory=list)
    """Begun again in Temporal."""
    returned: list[RolloutId] = field(default_factory=list)
    """Given back to a run that had ended."""
    waiting: list[RolloutId] = field(default_factory=list)
    """Not begun yet: nothing to retry."""
    final: list[RolloutId] = field(default_factory=list)
    restarted: list[CampaignId] = field(default_factory=list)
    """Runs that were started again."""
    kinds: dict[CampaignId, CampaignKind] = field(default_factory=dict)
    """Kinds of these."""


@dataclass(slots=True)
class RetryPlan:
    """Rollouts by what a retry does with them."""

    records: list[RolloutRecord] = field(default_factory=list)
    to_reset: list[RolloutId] = field(default_factory=list)
    of_ended: dict[CampaignId, list[RolloutId]] = field(default_factory=dict)
    """Those that are given back to a run that has ended."""
    waiting: list[RolloutId] = field(default_factory=list)
    """Not begun yet: nothing to retry."""
    final: list[RolloutId] = field(default_factory=list)

    @property
    def num_retried(self) -> int:
        return len(self.to_reset) + sum(map(len, self.of_ended.values()))

    def refuse_final(self, *, skip: bool) -> None:
        """Raises UsageError when one is final; with `skip` when all are."""
        if not self.final or (skip and len(self.final) < len(self.records)):
            return
        named = ", ".join(self.final[:NUM_NAMED]) + (", ..." if len(self.final) > NUM_NAMED else "")
        raise UsageError(
            f"{len(self.final)} of {len(self.records)} rollouts are final, their training groups "
            f"are closed: {named}",
            remedy="a closed training group does not change; nothing was retried",
        )


async def plan(db: Database, ids: Sequence[RolloutId]) -> RetryPlan:
    """Tell what a retry of these would do now. Raises UnknownId."""
    planned = RetryPlan()
    open_groups: dict[GroupId, bool] = {}
    runs: dict[CampaignId, CampaignRecord] = {}
    for id in ids:
        record = await rollouts.get(db, id)
        planned.records.append(record)
        if record.group not in open_groups:
            group = await groups.get(db, record.group)
            is_train = group.kind is GroupKind.TRAIN
            open_groups[record.group] = not is_train or group.status is GroupStatus.RUNNING
        if record.campaign not in runs:
            runs[record.campaign] = await campaigns.get(db, record.campaign)
        campaign = runs[record.campaign]
        if not open_groups[record.group]:
            planned.final.append(id)
        elif campaign.kind is not CampaignKind.TRAIN and campaign.status in campaigns.ENDS:
            planned.of_ended.setdefault(campaign.id, []).append(id)
        elif record.run_id is None and record.phase is not RolloutPhase.DONE:
            planned.waiting.append(id)
        else:
            planned.to_reset.append(id)
    return planned


async def retry(
    client: Client,
    db: Database,
    ids: Sequence[RolloutId],
    *,
    skip_final: bool = False,
    by: str = "",
) -> Retried:
    """`by`: who asks; empty: who runs this process. Raises UsageError when one is final, before
    anything is done; with `skip_final` when all are."""
    planned = await plan(db, ids)
    planned.refuse_final(skip=skip_final)
    done = Retried(waiting=planned.waiting, final=planned.final)
    for rollout in planned.to_reset:
        (done.reset if await reset(client, rollout) else done.waiting).append(rollout)
    for campaign, rollouts_of in planned.of_ended.items():
        for rollout in rollouts_of:
            await rollouts.give_back(db, rollout)
        await campaigns.reopen(db, campaign)
        await launch.start(client, db, campaign)
        done.returned += rollouts_of
        done.restarted.append(campaign)
        done.kinds[campaign] = (await campaigns.get(db, campaign)).kind
    await _tell(db, planned.records, {*done.reset, *done.returned}, by or person())
    return done


async def _tell(
    db: Database, records: Sequence[RolloutRecord], retried: Collection[RolloutId], by: str
) -> None:
    """One event for each campaign, whatever the number of its rollouts."""
    of: dict[CampaignId, list[RolloutId]] = {}
    for record in records:
        if record.id in retried:
            of.setdefault(record.campaign, []).append(record.id)
    for campaign, ids in of.items():
        what = ids[0] if len(ids) == 1 else f"{len(ids)} rollouts"
        event = events.Event(EventKind.COMMAND, campaign, f"rollout retry: {what}", campaign, by)
        await events.tell(db, event)


async def reset(client: Client, rollout: RolloutId) -> bool:
    """To the end of its first workflow task, before which it has done nothing. False when no worker
    has begun it. Raises UsageError when Temporal does not know it any more."""
    handle = client.get_workflow_handle(rollout_workflow(rollout))
    try:
        history = await handle.fetch_history()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        raise UsageError(
            f"Temporal does not know the workflow {handle.id} any more",
            remedy="start its campaign again: it runs the rollouts that have not ended",
        ) from None
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    first = next(
        (event.event_id for event in history.events if event.event_type == completed), None
    )
    if first is None:
        return False
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            reason=REASON,
            workflow_task_finish_event_id=first,
            request_id=str(uuid.uuid4()),
        )
    )
    return True
