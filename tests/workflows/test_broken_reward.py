"""A reward that cannot be computed ends its campaign, which goes on once the function is mended."""

import uuid

import pytest
from cluster import campaign_running
from temporalio.client import WorkflowFailureError

from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns, runs
from infra.db.tasks import tasks
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule, EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.reward import RewardConfig, RewardPart
from mainspring.config.run import RunConfig
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.ids import TaskId
from mainspring.rewards.scoring import Outcome
from mainspring.status import CampaignStatus, Unverified
from mainspring.tasks.swe_task import SweTask
from tests.waiting import until

MOODS: list[bool] = []


def moody(outcome: Outcome) -> float:
    """A reward of somebody's own."""
    if MOODS and MOODS.pop():
        raise ValueError("not today")
    return 1.0


async def config(cluster) -> CampaignConfig:
    """With six tasks of its own, that any patch resolves."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    made = [
        SweTask(
            id=TaskId(f"{name}-{number}"),
            source=name,
            split="train",
            issue="nothing is wrong",
            files={"a.py": ""},
            test_command="true",
        )
        for number in range(6)
    ]
    await tasks.put_tasks(cluster.db, made)
    return CampaignConfig(
        name=name,
        tasks=TasksConfig(source=name, unverified=Unverified.USE),
        agent=AgentConfig(step_limit=4, max_format_errors=2),
        policy=PolicyConfig(model="scripted"),
        trainer=TrainerConfig(group_size=2),
        evaluation=EvalSchedule(concurrency=2, splits=("train",), greedy=False),
        reward=RewardConfig(parts=(RewardPart(name="test_broken_reward:moody"),)),
    )


async def test_an_evaluation_fails_and_goes_on(cluster) -> None:
    shared = dict(await config(cluster))
    wanted = EvaluationConfig(
        **{each: shared[each] for each in RunConfig.model_fields}, split="train", concurrency=2
    )
    MOODS[:] = [True]
    campaign = await launch.create(cluster.db, wanted)
    handle = await launch.start(cluster.client, cluster.db, campaign)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    record = await campaigns.get(cluster.db, campaign)
    assert record.status is CampaignStatus.FAILED
    assert record.error is not None and "not today" in record.error

    await (await launch.start(cluster.client, cluster.db, campaign)).result()
    played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert [each.reward for each in played] == [1.0] * 6


async def test_a_training_campaign_fails_and_takes_no_more_groups(cluster) -> None:
    wanted = await config(cluster)
    MOODS[:] = [True]
    campaign = await launch.create(cluster.db, wanted)
    async with campaign_running(cluster, campaign) as handle:
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    record = await campaigns.get(cluster.db, campaign)
    assert (record.status, "not today" in (record.error or "")) == (CampaignStatus.FAILED, True)

    async def nothing_runs() -> bool:
        return (await runs.tally(cluster.db, campaign)).num_running == 0

    await until(nothing_runs)
    assert len(await groups.list_groups(cluster.db, campaign)) == 1
