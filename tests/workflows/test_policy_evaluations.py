"""A campaign's own evaluation as a run: one group, one rule for resuming, no status of its own."""

import uuid

import pytest
from scripted import SUBMIT
from scripted_trainer import Hold, hold_policy, until_reached
from temporalio.client import WorkflowFailureError, WorkflowHandle
from test_runs import put

from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import EngineError
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, GroupId, eval_group_id, evaluation_workflow
from mainspring.protocol.names import Workflow
from mainspring.protocol.run import PolicyEvaluation, RunProgress, RunState
from mainspring.status import CampaignStatus, GroupStatus, StopReason, Unverified, Verdict

VERSION = 3


async def make_campaign(cluster, num_tasks: int) -> CampaignId:
    source = await put(cluster, *((f"t{n}",) for n in range(num_tasks)))
    name = f"e-{uuid.uuid4().hex[:8]}"
    config = CampaignConfig(
        name=name,
        tasks=TasksConfig(source=source, unverified=Unverified.USE),
        agent=AgentConfig(step_limit=4, max_format_errors=2),
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
    )
    await campaigns.create(cluster.db, config)
    return CampaignId(name)


async def evaluate(cluster, campaign: CampaignId) -> tuple[GroupId, WorkflowHandle]:
    group = eval_group_id(campaign, "train", "greedy", VERSION)
    handle = await cluster.client.start_workflow(
        Workflow.RUN,
        RunState(
            campaign=campaign,
            concurrency=2,
            summary="train, greedy",
            evaluation=PolicyEvaluation(policy_version=VERSION, split="train", greedy=True),
        ),
        id=evaluation_workflow(group),
        task_queue=ROLLOUT_QUEUE,
        result_type=RunProgress,
    )
    return group, handle


async def test_one_that_is_cancelled_resumes_and_the_campaign_keeps_its_status(cluster) -> None:
    campaign = await make_campaign(cluster, 3)
    cluster.policy.say = lambda rollout, turn: SUBMIT
    hold = Hold("/001")
    hold_policy(cluster, {campaign: hold})
    group, handle = await evaluate(cluster, campaign)
    await until_reached(hold)
    assert (await handle.query("progress"))["num_in_flight"] >= 1
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    hold.released.set()
    assert (await groups.get(cluster.db, group)).status is GroupStatus.CANCELLED
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.CREATED
    before = {
        each.id: each.finished_at
        for each in await rollouts.list_rollouts(cluster.db, group=group)
        if each.stop_reason is StopReason.SUBMITTED
    }
    assert len(before) < 3

    _, handle = await evaluate(cluster, campaign)
    await handle.result()
    stored = await groups.get(cluster.db, group)
    assert (stored.status, stored.policy_version) == (GroupStatus.READY, VERSION)
    after = await rollouts.list_rollouts(cluster.db, group=group)
    assert [each.verdict for each in after] == [Verdict.NO_PATCH] * 3
    assert [each.temperature for each in after] == [0.0] * 3
    assert {each.id: each.finished_at for each in after if each.id in before} == before
    assert len(await groups.list_groups(cluster.db, campaign)) == 1
    assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.CREATED


async def test_one_that_is_complete_stays_with_what_was_masked(cluster) -> None:
    campaign = await make_campaign(cluster, 2)

    def say(rollout: str, turn: int) -> str:
        if rollout.endswith("/001"):
            raise EngineError("the engine refuses the request")
        return SUBMIT

    cluster.policy.say = say
    group, handle = await evaluate(cluster, campaign)
    await handle.result()
    before = await rollouts.list_rollouts(cluster.db, group=group)
    assert [each.stop_reason for each in before] == [StopReason.SUBMITTED, StopReason.INFRA_FAULT]
    assert (await groups.get(cluster.db, group)).status is GroupStatus.READY

    asked = len(cluster.policy.asked)
    _, handle = await evaluate(cluster, campaign)
    await handle.result()
    assert await rollouts.list_rollouts(cluster.db, group=group) == before
    assert len(cluster.policy.asked) == asked
