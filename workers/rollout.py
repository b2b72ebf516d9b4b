"""The rollout worker: all workflows, replies, bookkeeping. Stateless; run any number."""

import asyncio
import hashlib
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.campaigns import CampaignActivities
from activities.extensions import ExtensionActivities
from activities.judging import JudgeActivities
from activities.own_rewards import RewardActivities
from activities.programs.sessions import SessionActivities
from activities.replies.answers import AnswerActivities
from activities.replies.replies import ReplyActivities
from activities.rollouts import RolloutActivities
from activities.runs import RunActivities
from activities.training.publishing import PublishingActivities
from activities.training.sft import SftActivities
from infra.db.cache import FactCache
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from infra.db.rollouts.orphans import playing_rollouts
from infra.db.runs import campaigns
from infra.judges.judge import JudgesInUse
from infra.log_setup import set_up
from infra.policy.serving import Serve, ServedCampaigns, serve_over_http
from infra.process_start import pid_space
from infra.temporal.faults import Faults
from infra.temporal.sticky_queues import free_workflows
from infra.temporal.takeover import end_attempts, has_ended_here, worker_identity
from infra.tracking import telemetry
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError
from mainspring.ids import (
    JUDGE_QUEUE,
    ROLLOUT_QUEUE,
    campaign_workflow,
    rollout_workflow,
    worker_queue,
)
from mainspring.protocol.timeouts import STICKY_TIMEOUT_S
from workers.polling import (
    GRACE,
    HEARTBEAT_THROTTLE,
    NUM_POLLERS,
    poll_until_stopped,
    run_worker,
    workflow_runner,
)
from workers.search_filling import SearchFilling
from workers.service_link import ServiceLink
from workers.sweeping import Sweeping
from workflows.campaign import CampaignWorkflow
from workflows.extensions import ExtensionsWorkflow
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow
from workflows.run import RunWorkflow
from workflows.sft import SftWorkflow

MAX_ACTIVITIES = 1000
"""Replies in flight; they only wait. The SDK's default of 100 would be the real bound."""
MAX_WORKFLOW_TASKS = 100
CACHED_WORKFLOWS = 2000
MAX_JUDGEMENTS = 256
"""Judgements in flight. They have a queue of their own, so that replies never wait behind them."""
JUDGE_POLLERS = 2
"""Each judgement lasts as long as a reply: few begin at once."""
OWN_REPLIES = 64
"""Replies asked for by one task of a workflow that this worker takes itself, as it knows the
rollout (Temporal's eager execution): all that a program may have under way. What is tried again
goes to any worker."""
STICKY_TIMEOUT = timedelta(seconds=STICKY_TIMEOUT_S)
TITLE = "a rollout worker"
HISTORIES_READ = "histories of rollouts were read"
"""The last line of a worker's log: how many it knew, and how many it read whole from the store."""

log = structlog.get_logger()


def main(home: Path | None, serve: Serve | None = None) -> None:
    """`serve` gives the policy of a campaign; without it, its engines are asked over HTTP."""
    settings = load_settings(home)
    set_up(settings.log_format)
    telemetry.begin("rollout")
    run_worker(_run(settings, serve))


async def _run(settings: Settings, serve: Serve | None) -> None:
    async with open_database(settings, PoolRole.ROLLOUT) as db:
        link = await ServiceLink.open(settings, db, name=worker_identity(_name()))
        client = link.client
        cache = FactCache(db)
        over_http = partial(serve_over_http, api_key=settings.policy_api_key)
        served = ServedCampaigns(db, serve or over_http)
        bookkeeping = RolloutActivities(db, cache)
        standing = CampaignActivities(db, cache)
        offering = SessionActivities(db, cache)
        judges = JudgesInUse()
        replies = ReplyActivities(db, cache, served)
        answers = AnswerActivities(db, cache, served)
        worker = Worker(
            client,
            task_queue=ROLLOUT_QUEUE,
            workflows=[
                RolloutWorkflow,
                GroupWorkflow,
                CampaignWorkflow,
                RunWorkflow,
                SftWorkflow,
                ExtensionsWorkflow,
            ],
            workflow_runner=workflow_runner(),
            interceptors=[Faults()],
            activities=[
                replies.generate,
                answers.answer_call,
                PublishingActivities(db, served).publish_policy,
                bookkeeping.begin_rollout,
                bookkeeping.new_epoch,
                bookkeeping.finish_rollout,
                bookkeeping.create_group,
                bookkeeping.finish_group,
                bookkeeping.set_campaign_status,
                bookkeeping.plan_step,
                offering.offer_session,
                offering.read_session,
                offering.end_session,
                offering.refuse_requests,
                standing.survey_campaign,
                standing.admit_groups,
                standing.read_outcome,
                RunActivities(db).create_run_group,
                RunActivities(db).next_candidates,
                SftActivities(db).survey_sft,
            ],
            max_concurrent_activities=MAX_ACTIVITIES,
            max_concurrent_workflow_tasks=MAX_WORKFLOW_TASKS,
            max_cached_workflows=CACHED_WORKFLOWS,
            max_eager_activity_reservations_per_workflow_task=OWN_REPLIES,
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            graceful_shutdown_timeout=GRACE,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            max_concurrent_workflow_task_polls=NUM_POLLERS,
            max_concurrent_activity_task_polls=NUM_POLLERS,
        )
        judges_asked = JudgeActivities(db, cache, judges)
        judging = Worker(
            client,
            task_queue=JUDGE_QUEUE,
            interceptors=[Faults()],
            activities=[
                judges_asked.judge,
                RewardActivities(db, cache, judges_asked).score,
            ],
            max_concurrent_activities=MAX_JUDGEMENTS,
            graceful_shutdown_timeout=GRACE,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            max_concurrent_activity_task_polls=JUDGE_POLLERS,
        )
        own = Worker(
            client,
            task_queue=worker_queue(client.identity),
            activities=[ExtensionActivities().check_extensions],
            max_concurrent_activity_task_polls=1,
        )
        link.announce("rollout worker", ROLLOUT_QUEUE)
        freeing = asyncio.create_task(free_workflows(client, ROLLOUT_QUEUE))
        ending = asyncio.create_task(_end_left(client, db))
        try:
            await poll_until_stopped(
                link,
                [worker, judging, own],
                Sweeping(db, client).run_forever,
                SearchFilling(db).run_forever,
            )
        finally:
            freeing.cancel()
            ending.cancel()
            await served.close()
            await judges.close()
            reads = (replies.calls.reads, answers.calls.reads)
            log.info(
                HISTORIES_READ,
                known=sum(read.num_known for read in reads),
                whole=sum(read.num_whole for read in reads),
            )


def _name() -> str:
    """Shared by the rollout workers of one place, which see whether the others live."""
    return f"rollouts-{hashlib.sha256(pid_space().encode()).hexdigest()[:6]}"


async def _end_left(client: Client, db: Database) -> None:
    """End attempts at replies and loads of weights that killed workers of this place left."""
    try:
        left = [rollout_workflow(row.rollout) for row in await playing_rollouts(db, 0.0)]
        left += [campaign_workflow(row.campaign) for row in await campaigns.underway(db)]
        num_ended = await end_attempts(client, TITLE, left, is_left=has_ended_here)
    except DatabaseError as error:
        log.info("attempts are left to their heartbeats", reason=error.message)
        return
    if num_ended:
        log.info("attempts of killed workers are made again", number=num_ended)
