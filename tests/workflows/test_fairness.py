"""Campaigns that wait for the same nodes take turns, and evaluations go ahead of training."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.implements import implements
from activities.rollouts import RolloutActivities
from activities.runs import RunActivities
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.stack.temporal_server import Temporal
from infra.temporal.connection import connect
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.settings import load_settings
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.ids import (
    ROLLOUT_QUEUE,
    SANDBOX_QUEUE,
    CampaignId,
    TaskId,
    eval_group_id,
    evaluation_workflow,
    group_id,
    group_workflow,
)
from mainspring.protocol.activities import OPEN_SANDBOX
from mainspring.protocol.campaign import GroupInput
from mainspring.protocol.names import Workflow
from mainspring.protocol.rollout import OpenInput, SandboxRef
from mainspring.protocol.run import PolicyEvaluation, RunState
from mainspring.status import FaultKind
from mainspring.tasks.swe_task import SweTask
from tests.waiting import until
from workers.polling import workflow_runner
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow
from workflows.run import RunWorkflow

ROOT = Path(__file__).parents[2]
NUM_LARGE, NUM_SMALL, NUM_EVALUATED = 24, 6, 3
SCHEDULED_S = 1.0
"""From a rollout's claim until its open is in the queue."""


class Node:
    """One slot; it writes down whom it would serve and refuses the task."""

    def __init__(self) -> None:
        self.served: list[str] = []

    @implements(OPEN_SANDBOX)
    async def open_sandbox(self, ask: OpenInput) -> SandboxRef:
        self.served.append(ask.rollout)
        raise ApplicationError("no", type=FaultKind.TASK_INVALID, non_retryable=True)


@pytest.fixture
async def db(stack: StackInfo) -> AsyncIterator[Database]:
    async with Database.open(stack.database_url) as database:
        yield database


async def make_campaign(db: Database, group_size: int) -> CampaignId:
    name = f"f-{uuid.uuid4().hex[:8]}"
    made = [
        SweTask(
            id=TaskId(f"{name}-{split}-{n}"),
            source=name,
            split=split,
            issue="-",
            files={"a.py": ""},
            test_command="true",
        )
        for split, size in (("train", 1), ("heldout", NUM_EVALUATED))
        for n in range(size)
    ]
    await tasks.put_tasks(db, made)
    config = CampaignConfig(
        name=name,
        tasks=TasksConfig(source=name),
        policy=PolicyConfig(model="none"),
        trainer=TrainerConfig(group_size=group_size),
    )
    await campaigns.create(db, config)
    return CampaignId(name)


async def start_group(client: Client, campaign: CampaignId):
    return await client.start_workflow(
        Workflow.GROUP,
        GroupInput(campaign=campaign, index=0, policy_version=0),
        id=group_workflow(group_id(campaign, 0)),
        task_queue=ROLLOUT_QUEUE,
    )


async def start_evaluation(client: Client, campaign: CampaignId):
    return await client.start_workflow(
        Workflow.RUN,
        RunState(
            campaign=campaign,
            concurrency=8,
            summary="heldout, greedy",
            evaluation=PolicyEvaluation(policy_version=0, split="heldout", greedy=True),
        ),
        id=evaluation_workflow(eval_group_id(campaign, "heldout", "greedy", 0)),
        task_queue=ROLLOUT_QUEUE,
    )


async def until_queued(db: Database, campaign: CampaignId, number: int) -> None:
    async def are_claimed() -> bool:
        stored = await rollouts.list_rollouts(db, campaign=campaign)
        return len([each for each in stored if each.run_id]) == number

    await until(are_claimed)
    await asyncio.sleep(SCHEDULED_S)


async def test_the_second_campaign_does_not_wait_for_the_first(
    stack: StackInfo, db: Database
) -> None:
    client = await connect(load_settings(stack.home))
    large, small = await make_campaign(db, NUM_LARGE), await make_campaign(db, NUM_SMALL)
    bookkeeping, node = RolloutActivities(db, FactCache(db)), Node()
    async with Worker(
        client,
        task_queue=ROLLOUT_QUEUE,
        workflows=[RolloutWorkflow, GroupWorkflow, RunWorkflow],
        workflow_runner=workflow_runner(),
        activities=[
            bookkeeping.begin_rollout,
            bookkeeping.finish_rollout,
            bookkeeping.create_group,
            bookkeeping.finish_group,
            RunActivities(db).create_run_group,
        ],
    ):
        begun = [await start_group(client, large)]
        await until_queued(db, large, NUM_LARGE)
        begun.append(await start_group(client, small))
        await until_queued(db, small, NUM_SMALL)
        begun.append(await start_evaluation(client, large))
        await until_queued(db, large, NUM_LARGE + NUM_EVALUATED)
        async with Worker(
            client,
            task_queue=SANDBOX_QUEUE,
            activities=[node.open_sandbox],
            max_concurrent_activities=1,
        ):
            await asyncio.gather(*(each.result() for each in begun))
    # Each masked rollout of a training group is retried once.
    node.served = list(dict.fromkeys(node.served))
    assert len(node.served) == NUM_LARGE + NUM_SMALL + NUM_EVALUATED
    # One may have been handed out before the evaluation's were seen.
    evaluated = [n for n, each in enumerate(node.served) if "/eval-" in each]
    assert max(evaluated) <= NUM_EVALUATED
    training = [each for each in node.served if "/eval-" not in each]
    turns = [n for n, each in enumerate(training) if each.startswith(f"{small}/")]
    assert max(turns) < 2 * NUM_SMALL + 4, turns


def test_the_composed_server_is_set_like_the_embedded_one(tmp_path: Path) -> None:
    embedded = dict(
        word.split("=")
        for word in Temporal(tmp_path)._command(1, 2)
        if word.startswith(("matching.", "system."))
    )
    composed = yaml.safe_load((ROOT / "infra/deploy/temporal.yaml").read_text())
    for key, value in embedded.items():
        assert [{"value": yaml.safe_load(value)}] == composed[key], key
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    [mounted] = service["services"]["temporal"]["configs"]
    path = service["services"]["temporal"]["environment"]["DYNAMIC_CONFIG_FILE_PATH"]
    assert mounted["target"] == path
    assert (ROOT / service["configs"][mounted["source"]]["file"]).exists()
