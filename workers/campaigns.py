"""Starting a campaign and taking one up again: from the store to a running workflow.

Invariant: both are idempotent. Creating stores tasks and configuration once; starting hands the
workflow a state read from the store, so a campaign whose workflow failed, was cancelled or was
terminated goes on at its next step with the groups that are ready.
"""

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from infra.db import campaigns, groups, policies, tasks
from infra.db.database import Database
from mainspring.bundled.generator import Split, make_tasks
from mainspring.config import BUNDLED, CampaignConfig
from mainspring.errors import UsageError
from mainspring.ids import (
    ROLLOUT_QUEUE,
    CampaignId,
    GroupId,
    campaign_id,
    campaign_workflow,
    group_workflow,
)
from mainspring.protocol.campaign import CampaignPlan, CampaignState
from mainspring.protocol.names import Workflow
from mainspring.status import CampaignStatus, GroupKind, GroupStatus
from workflows import search

_OPEN = (GroupStatus.RUNNING, GroupStatus.READY)
SPLITS: tuple[Split, ...] = ("train", "heldout", "heldout_templates")


async def create(db: Database, config: CampaignConfig) -> CampaignId:
    """Store the campaign and its tasks. Raises UsageError when the name means another config.

    The campaign's row comes last: a stored campaign has its tasks, whatever a later version of the
    generator would make of the seed.
    """
    campaign = campaign_id(config.name)
    if any(record.id == campaign for record in await campaigns.list_all(db)):
        await campaigns.create(db, config)
        return campaign
    if config.tasks.source == BUNDLED:
        for split in SPLITS:
            made = make_tasks(config.seed, split, config.split_size(split) or 0)
            await tasks.put_tasks(
                db, [task.model_copy(update={"source": config.task_source}) for task in made]
            )
    for split in ("train", *config.evaluation.splits):
        if not await tasks.task_ids(db, config.task_source, split, limit=1):
            raise UsageError(
                f"campaign {config.name}: source {config.task_source!r} has no tasks in split "
                f"{split!r}",
                remedy="import the tasks first, or correct tasks.source and evaluation.splits",
            )
    await campaigns.create(db, config)
    return campaign


async def start(client: Client, db: Database, campaign: CampaignId) -> WorkflowHandle:
    """Start the campaign's workflow, or find it running."""
    try:
        return await client.start_workflow(
            Workflow.CAMPAIGN,
            await _state(client, db, campaign),
            id=campaign_workflow(campaign),
            task_queue=ROLLOUT_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"campaign {campaign}",
            search_attributes=TypedSearchAttributes(
                [SearchAttributePair(search.CAMPAIGN, campaign)]
            ),
        )
    except WorkflowAlreadyStartedError:
        return client.get_workflow_handle(campaign_workflow(campaign))


async def _state(client: Client, db: Database, campaign: CampaignId) -> CampaignState:
    """Where the campaign stands, read from the store."""
    record = await campaigns.get(db, campaign)
    config = record.config
    newest = await policies.latest_policy(db, campaign)
    in_flight: list[int] = []
    ready: list[int] = []
    stored = await groups.list_groups(db, campaign, GroupKind.TRAIN)
    for group in stored:
        if group.index is None or group.status not in _OPEN:
            continue
        if group.status is GroupStatus.READY:
            ready.append(group.index)
        elif await _is_running(client, group.id):
            in_flight.append(group.index)
        else:
            await groups.finish_group(db, group.id, cancelled=True)
    return CampaignState(
        campaign=campaign,
        plan=CampaignPlan(
            num_steps=config.trainer.num_steps,
            groups_per_step=config.trainer.groups_per_step,
            max_staleness=config.trainer.max_staleness,
            eval_every_steps=config.evaluation.every_steps,
            eval_splits=list(config.evaluation.splits),
            eval_greedy=config.evaluation.greedy,
            eval_concurrency=config.evaluation.concurrency,
        ),
        step=newest.version if newest else 0,
        next_group=max((group.index or 0 for group in stored), default=-1) + 1,
        in_flight=in_flight,
        ready=ready,
        paused=record.status is CampaignStatus.PAUSED,
    )


async def _is_running(client: Client, group: GroupId) -> bool:
    try:
        described = await client.get_workflow_handle(group_workflow(group)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return described.status is WorkflowExecutionStatus.RUNNING
