"""Plays one setting to its end, in seconds of real time, and measures it.

Decisions that read a clock, and why the simulation does not fool them. Rows of Postgres have real
times: the survey counts masked groups after `since`, which is given here in real time; their order
is that of simulated time, because time is skipped only while nothing runs. Leases, nodes and the
trainer's ownership are not made, as their activities are the fleet's. Workflows and timeouts
read Temporal's clock alone. The skipping server also lets the real seconds pass that the machine
works: below one of a hundred, and the reason why figures repeat to about that.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.campaigns import CampaignActivities
from activities.rollouts import RolloutActivities
from cli.bench.simulate.clock import Activity, keep_passing
from cli.bench.simulate.figures import Figures, measured
from cli.bench.simulate.fleet import NODE, SimulatedNode, SimulatedTrainer
from cli.bench.simulate.journal import Journal
from cli.bench.simulate.passing_time import PassingTime
from cli.bench.simulate.setting import SOURCE, Setting
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from infra.temporal.faults import Faults
from infra.temporal.skipping_server import skipping_time
from mainspring.ids import (
    GRADE_QUEUE,
    ROLLOUT_QUEUE,
    SANDBOX_QUEUE,
    CampaignId,
    TaskId,
    campaign_workflow,
    node_queue,
    trainer_queue,
)
from mainspring.protocol.campaign import CampaignState, plan_of
from mainspring.protocol.names import Workflow
from mainspring.tasks.swe_task import SweTask
from workers.polling import workflow_runner
from workflows.campaign import CampaignWorkflow
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow

TASK = SweTask(
    id=TaskId("simulated"),
    source=SOURCE,
    split="train",
    issue="nothing is wrong",
    files={"a.py": ""},
    test_command="true",
)
MAX_CONCURRENT = 500
MAX_CACHED = 4000


async def play(
    db: Database, name: str, setting: Setting, progress: Callable[[int], None]
) -> Figures:
    """Run the campaign `name` on a server of its own. `progress` is told each step that is done."""
    campaign = CampaignId(name)
    await tasks.put_tasks(db, [TASK])
    await campaigns.create(db, setting.config(name))
    await policies.put_first_policy(db, campaign, f"/simulated/{name}/v0")
    journal = Journal(on_step=progress)
    started = time.monotonic()
    seen = Activity()
    async with skipping_time() as server, AsyncExitStack() as running:
        for worker in _workers(server.client, db, campaign, setting, journal, seen):
            await running.enter_async_context(worker)
        passing = asyncio.create_task(keep_passing(server, seen))
        playing = asyncio.create_task(_run(server.client, campaign, setting))
        try:
            await asyncio.wait({passing, playing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
            error = await playing
        finally:
            passing.cancel()
            playing.cancel()
    real_s = time.monotonic() - started
    return await measured(db, campaign, setting, journal, error, real_s)


async def _run(client: Client, campaign: CampaignId, setting: Setting) -> str | None:
    """Why it failed; None: all steps are done."""
    state = CampaignState(
        campaign=campaign,
        plan=plan_of(setting.config(campaign)),
        published_version=0,
        measured_version=0,
        since=time.time(),
    )
    try:
        await client.execute_workflow(
            Workflow.CAMPAIGN,
            state,
            id=campaign_workflow(campaign),
            task_queue=ROLLOUT_QUEUE,
        )
    except WorkflowFailureError as failed:
        cause = failed.cause
        return cause.message if isinstance(cause, ApplicationError) else str(cause)
    return None


def _workers(
    client: Client,
    db: Database,
    campaign: CampaignId,
    setting: Setting,
    journal: Journal,
    seen: Activity,
) -> list[Worker]:
    facts = FactCache(db)
    bookkeeping = RolloutActivities(db, facts)
    standing = CampaignActivities(db, facts)
    node = SimulatedNode(setting, journal, bookkeeping)
    trainer = SimulatedTrainer(db, journal)
    of_queue = {
        SANDBOX_QUEUE: [node.open_sandbox],
        GRADE_QUEUE: [node.grade],
        node_queue(NODE): [
            node.play_turns,
            node.restore_sandbox,
            node.collect_patch,
            node.close_sandbox,
        ],
        trainer_queue(campaign): [trainer.train_step],
    }
    workflows = Worker(
        client,
        task_queue=ROLLOUT_QUEUE,
        workflows=[RolloutWorkflow, GroupWorkflow, CampaignWorkflow],
        workflow_runner=workflow_runner(),
        interceptors=[Faults(), seen, PassingTime(setting)],
        activities=[
            node.begin_rollout,
            bookkeeping.new_epoch,
            bookkeeping.finish_rollout,
            bookkeeping.create_group,
            bookkeeping.finish_group,
            bookkeeping.set_campaign_status,
            bookkeeping.plan_step,
            standing.survey_campaign,
            standing.admit_groups,
            standing.read_outcome,
            trainer.publish_policy,
        ],
        max_cached_workflows=MAX_CACHED,
    )
    others = [
        Worker(
            client,
            task_queue=queue,
            activities=activities,
            interceptors=[Faults(), seen],
            max_concurrent_activities=MAX_CONCURRENT,
        )
        for queue, activities in of_queue.items()
    ]
    return [workflows, *others]
