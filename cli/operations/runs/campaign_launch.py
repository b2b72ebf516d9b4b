"""Starting a campaign and resuming one: from the store to a running workflow.

Invariant: both are idempotent. Creating stores configuration and tasks once, the tasks chosen by
what is known of them then; a workflow that is started reads from the store where its campaign
stands, so one that failed, was cancelled or was terminated resumes at its next step with the groups
that are ready. Evaluations, verifications and regrades are campaigns of another kind.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.checks.named_parts import check_named
from cli.operations.checks.pass_rate_checks import check_pass_rates
from cli.operations.checks.sandboxes_here import require_backends, require_bundles
from cli.operations.checks.services_here import require_services
from cli.operations.checks.split_choice import SPLITS, by_agent, counted, ids_of, select
from cli.operations.checks.task_checks import (
    as_played,
    check_backend_fits,
    check_can_be_verified,
    check_chooses,
    check_tasks,
)
from cli.operations.machine.fleet_extensions import pollers
from cli.operations.runs.stored_run import refuse_retrained
from infra.db.database import Database
from infra.db.plans import run_plans
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.db.tasks import selections
from infra.db.tasks.selections import Selected
from infra.sandbox.backends import Backends
from mainspring.config.any_run import Measurement, Playing
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.choosing import ChooseBy
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.evaluations.regrade import RegradeConfig
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.settings import USUAL_NAMESPACE
from mainspring.config.sft import SftConfig
from mainspring.errors import UsageError
from mainspring.ids import (
    CampaignId,
    TaskId,
    campaign_id,
    campaign_workflow,
)
from mainspring.protocol.campaign import CampaignState, plan_of
from mainspring.protocol.cross_testing import CrossTestPlan
from mainspring.protocol.names import WORKFLOW_TASK_TIMEOUT, Workflow
from mainspring.protocol.retrain import RetrainState
from mainspring.protocol.run import RunState
from mainspring.protocol.sft import SftState
from mainspring.protocol.timeouts import GRADE_GRACE_S
from mainspring.status import CampaignStatus
from workflows import search

CANCEL_TIMEOUT_S = 120.0
"""A cancelled campaign lets its activities end, its trainer's among them. One that takes longer is
replaced: whatever still runs of it is fenced, or taken up by the one that is started."""
SAY_EVERY_S = 15.0
LOOK_S = 0.5
LOOK_TIMEOUT_S = 5.0


async def create(db: Database, config: Playing, here: Backends | None = None) -> CampaignId:
    """Store the campaign and its tasks. Raises UsageError when the name means another config, when
    there is nothing to do it with, or its reward cannot be computed; BackendUnavailable when a task
    needs a sandbox backend that does not work `here`, and BundleMissing when a client is not
    (None: its nodes are elsewhere).

    The campaign's row comes last: a stored campaign has its tasks, whatever a later version of the
    generator would make of the seed.
    """
    campaign = campaign_id(config.name)
    stored = await campaigns.find(db, campaign)
    if stored is not None:
        refuse_retrained(stored)
        await campaigns.create(db, config)
        if here is not None and stored.status is not CampaignStatus.FINISHED:
            require_bundles(await as_played(db, config))
            await require_backends(db, config, await _used(db, stored), here)
        return campaign
    check_named(config)
    selected: list[Selected] = []
    played: Playing = config
    match config:
        case CampaignConfig():
            _check_tokens(config)
            await check_pass_rates(db, config)
            selected = await select(db, config, SPLITS)
            used = ids_of(selected)
            for agent, ids in by_agent(config, selected).items():
                played = await check_tasks(db, played, ids, agent)
        case EvaluationConfig():
            selected = await select(db, config, config.splits)
            used = ids_of(selected)
            played = await check_tasks(db, config, used)
            await check_chooses(db, config, used)
        case VerificationConfig():
            selected = await select(db, config, config.splits)
            used = ids_of(selected)
            await check_can_be_verified(db, config, used)
        case RegradeConfig():
            used = await _used(db, await _check_regrade(db, config))
        case _:
            assert_never(config)
    await check_backend_fits(db, config, used)
    if here is not None:
        require_bundles(played)
        await require_backends(db, config, used, here)
        await require_services(db, config, used)
    await campaigns.create(db, config, selected)
    return campaign


async def _used(db: Database, stored: CampaignRecord) -> list[TaskId]:
    """The tasks of a stored campaign, of whatever kind."""
    config = stored.config
    while isinstance(config, RegradeConfig):
        config = (await campaigns.get(db, campaign_id(config.of))).config
    if isinstance(config, SftConfig):
        return []
    return [id for split in config.splits for id in await selections.task_ids(db, config, split)]


def _check_tokens(config: CampaignConfig) -> None:
    if not config.policy.api.gives_tokens:
        raise UsageError(
            f"campaign {config.name}: policy.api = {config.policy.api.value!r} gives no tokens to "
            "train on",
            remedy='train with policy.api = "sglang" or "vllm", or measure it with '
            "`mainspring eval run`",
        )


async def _check_regrade(db: Database, config: RegradeConfig) -> CampaignRecord:
    """The campaign whose patches are graded again."""
    source = await campaigns.get(db, campaign_id(config.of))
    if isinstance(source.config, VerificationConfig):
        raise UsageError(
            f"campaign {source.id} graded given patches: there are none of an agent to grade again",
            remedy="run `mainspring tasks verify` again under another name",
        )
    if source.status not in campaigns.ENDS:
        raise UsageError(
            f"campaign {source.id} is {source.status}: its patches are not all there",
            remedy=f"wait for its end, or `mainspring campaign cancel {source.id}`",
        )
    if not await run_plans.num_patches(db, source.id):
        raise UsageError(f"campaign {source.id} has no patch to grade")
    return source


async def left_out(db: Database, campaign: CampaignId) -> str:
    """How many tasks the campaign excludes, and why; empty when it uses all."""
    counts = await selections.left_out(db, campaign)
    if not counts:
        return ""
    total = sum(counts.values())
    return f"{total} {'task is' if total == 1 else 'tasks are'} excluded: {counted(counts)}"


async def start(
    client: Client,
    db: Database,
    campaign: CampaignId,
    say: Callable[[str], None] = lambda text: None,
    *,
    brings_workers: bool = False,
) -> WorkflowHandle:
    """Start the campaign's workflow, or find it running. One that is being cancelled ends first, or
    is replaced when no worker ends it. `brings_workers`: the caller starts one that
    runs it.

    The row has its new status before the workflow is started, so that what watches it from here on
    does not take the end before for this one's."""
    handle = client.get_workflow_handle(campaign_workflow(campaign))
    await _tell_of_other_namespace(client, handle.id, say)
    queue = (await campaigns.get(db, campaign)).workflow_queue
    is_stuck = not await _until_cancelled(client, db, handle, queue, say, brings_workers)
    record = await campaigns.get(db, campaign)
    paused = record.status is CampaignStatus.PAUSED
    state: CampaignState | SftState | RunState | RetrainState
    if record.status is CampaignStatus.FINISHED:
        return handle
    if record.is_retrained:
        kind, state = Workflow.RETRAIN, RetrainState(campaign=campaign, paused=paused)
    elif isinstance(record.config, CampaignConfig):
        kind, state = Workflow.CAMPAIGN, _state(record.config, paused)
    elif isinstance(record.config, SftConfig):
        kind, state = Workflow.SFT, SftState(campaign=campaign, paused=paused)
    else:
        kind, state = Workflow.RUN, _run_state(record.config, paused)
    before = await campaigns.resume(db, campaign, CampaignStatus.CREATED)
    try:
        return await client.start_workflow(
            kind,
            state,
            id=handle.id,
            task_queue=record.workflow_queue,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            # The store alone tells whether it has finished: a workflow of this name may have
            # completed before a run was opened again, for a campaign that was deleted, or for a
            # store that was restored from a backup since.
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            # What it has under way is taken up from the store, as after any end.
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING
            if is_stuck
            else WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"{record.kind} {campaign}",
            search_attributes=TypedSearchAttributes(
                [SearchAttributePair(search.CAMPAIGN, campaign)]
            ),
        )
    except WorkflowAlreadyStartedError:
        return handle
    except BaseException:
        if before is not None:
            await campaigns.set_status(db, campaign, before, record.error)
        raise


async def _tell_of_other_namespace(
    client: Client, workflow: str, say: Callable[[str], None]
) -> None:
    """Earlier versions worked in Temporal's usual namespace: what they left there stays Running."""
    if client.namespace == USUAL_NAMESPACE:
        return
    try:
        described = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(
                namespace=USUAL_NAMESPACE, execution=WorkflowExecution(workflow_id=workflow)
            ),
            timeout=timedelta(seconds=LOOK_TIMEOUT_S),
        )
    except RPCError:
        return  # no such workflow or namespace, or one that is not for us
    info = described.workflow_execution_info
    if info.status == WorkflowExecutionStatus.RUNNING:
        say(
            f"{workflow} also runs in Temporal's namespace {USUAL_NAMESPACE}, where nothing works "
            "on it: an earlier version of Mainspring may have left it. To end it, run `temporal "
            f"workflow terminate --namespace {USUAL_NAMESPACE} --workflow-id {workflow}`"
        )


async def _until_cancelled(
    client: Client,
    db: Database,
    handle: WorkflowHandle,
    queue: str,
    say: Callable[[str], None],
    brings_workers: bool,
) -> bool:
    """Wait for the end of a workflow that was asked to cancel, which takes it a moment. False when
    it takes too long, or no worker is there to end it."""
    begun = time.monotonic()
    said_at = -SAY_EVERY_S
    while await is_being_cancelled(handle):
        now = time.monotonic()
        if not brings_workers and not await pollers(client, db, queue, "workflow"):
            say(f"{handle.id} was cancelled, and no worker runs to end it: replaced")
            return False
        if now - begun > CANCEL_TIMEOUT_S:
            say(f"{handle.id} was cancelled and has not ended in {now - begun:.0f} s: replaced")
            return False
        if now - said_at >= SAY_EVERY_S:
            said_at = now
            say(f"{handle.id} was cancelled: waiting until it has ended")
        await asyncio.sleep(LOOK_S)
    return True


async def runs(client: Client, campaign: CampaignId) -> bool:
    """Whether its workflow runs, and is not being cancelled."""
    running = await describe_running(client.get_workflow_handle(campaign_workflow(campaign)))
    return running is not None and not _is_cancelled(running)


async def is_being_cancelled(handle: WorkflowHandle) -> bool:
    running = await describe_running(handle)
    return running is not None and _is_cancelled(running)


def _is_cancelled(running: WorkflowExecutionDescription) -> bool:
    return running.raw_description.workflow_extended_info.cancel_requested


async def describe_running(handle: WorkflowHandle) -> WorkflowExecutionDescription | None:
    """None when the workflow does not run, or Temporal does not know it."""
    described = await describe(handle)
    is_running = described and described.status is WorkflowExecutionStatus.RUNNING
    return described if is_running else None


async def describe(handle: WorkflowHandle) -> WorkflowExecutionDescription | None:
    """None when Temporal does not know the workflow."""
    try:
        return await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def _run_state(config: Measurement, paused: bool) -> RunState:
    regrades = isinstance(config, RegradeConfig)
    return RunState(
        campaign=CampaignId(config.name),
        concurrency=config.concurrency,
        summary=f"patch of {config.of}" if regrades else f"{config.task_source} {config.split}",
        paused=paused,
        cross_tests=_cross_tests(config) if isinstance(config, EvaluationConfig) else None,
    )


def _cross_tests(config: EvaluationConfig) -> CrossTestPlan | None:
    choose = config.choose
    if choose is None or choose.by is not ChooseBy.CROSS_TESTS:
        return None
    # Its own tests are run twice.
    num_runs = choose.max_tests + choose.tests_per_rollout
    return CrossTestPlan(attempt_s=num_runs * (choose.test_timeout_s + GRADE_GRACE_S))


def _state(config: CampaignConfig, paused: bool) -> CampaignState:
    """Input of the workflow's decisions; where the campaign stands it reads from the store."""
    return CampaignState(
        campaign=CampaignId(config.name),
        plan=plan_of(config),
        paused=paused,
    )
