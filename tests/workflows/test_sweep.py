"""Terminated rollouts and groups are ended, reaped and replaced; what is healthy is left alone."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from cluster import campaign_running
from scripted import SUBMIT, bash
from sqlalchemy import func, select
from temporalio.testing import ActivityEnvironment

from activities.sweep import SweepActivities
from infra.db.fence import Fenced
from infra.db.nodes import sandboxes
from infra.db.rollouts import groups, rollouts, turns
from infra.db.runs import campaigns
from infra.db.tables.models import ExecutionRow, SandboxPurpose
from infra.db.tasks import tasks
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.policy import PolicyConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.ids import (
    ROLLOUT_QUEUE,
    CampaignId,
    GroupId,
    RolloutId,
    TaskId,
    group_id,
    group_workflow,
    rollout_id,
)
from mainspring.protocol.campaign import FinishGroupResult, GroupInput
from mainspring.protocol.names import Workflow
from mainspring.protocol.sweep import SweepInput, SweepResult
from mainspring.status import GroupStatus, RolloutPhase, SandboxStatus, StopReason
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import Execution
from tests.waiting import until

FIX = bash("sed -i 's/a - b/a + b/' calc.py")
Sweep = Callable[[], Awaitable[SweepResult]]


@pytest.fixture
async def sweep(cluster) -> Sweep:
    activities = SweepActivities(cluster.db, cluster.client, beats_s=0.0)

    async def run() -> SweepResult:
        ask = SweepInput(min_age_s=0.0)
        return await ActivityEnvironment().run(activities.sweep, ask)

    # What other tests left behind is not counted here.
    await run()
    return run


async def commands_begun(cluster, group: GroupId) -> int:
    async with cluster.db.transaction() as connection:
        return await connection.scalar(
            select(func.count()).where(ExecutionRow.rollout_id.startswith(f"{group}/"))
        )


async def in_the_middle_of_a_command(cluster, size: int = 1):
    cluster.policy.say = lambda rollout, turn: bash("sleep 60")
    campaign, group, ids = await cluster.make_rollouts(size)
    handles = [await cluster.start(rollout, campaign, group) for rollout in ids]

    async def begun() -> bool:
        return await commands_begun(cluster, group) == size

    await until(begun)
    return group, ids, handles


async def make_campaign(cluster, group_size: int, **sandbox: int) -> CampaignId:
    """With one training task of its own, so that real group workflows can run."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    config = CampaignConfig(
        name=name,
        tasks=TasksConfig(source=name),
        agent=AgentConfig(step_limit=4, command_timeout_s=60.0),
        policy=PolicyConfig(model="scripted"),
        trainer=TrainerConfig(
            group_size=group_size, num_steps=1, groups_per_step=1, max_staleness=0
        ),
        # A campaign's state tells that nothing is left to measure.
        evaluation=EvalSchedule(splits=(), greedy=False),
        sandbox=SandboxConfig(**sandbox),
    )
    task = SweTask(
        id=TaskId(name),
        source=name,
        split="train",
        issue="add subtracts",
        files={"calc.py": "def add(a, b):\n    return a - b\n"},
        tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
        test_command="python3 hidden_test.py",
    )
    await tasks.put_tasks(cluster.db, [task])
    await campaigns.create(cluster.db, config)
    return CampaignId(name)


async def test_a_terminated_rollout_is_ended_and_reaped(cluster, sweep: Sweep) -> None:
    _, [rollout], [handle] = await in_the_middle_of_a_command(cluster)
    await handle.terminate()
    found = await sweep()
    assert (found.num_rollouts_ended, found.num_rollouts_alive) == (1, 0)
    row = await cluster.row(rollout)
    assert (row.phase, row.stop_reason) == (RolloutPhase.DONE, StopReason.TERMINATED)
    assert (row.reward, row.num_turns) == (None, 1)
    assert row.fault == f"its workflow rollout/{rollout} is terminated"
    await cluster.reaper.reap()
    assert not [s for s in await cluster.open_sandboxes() if rollout.replace("/", ".") in s]
    [lease] = await sandboxes.rollout_leases(cluster.db, rollout)
    assert lease.status is SandboxStatus.REAPED
    late = Execution(0, 0, "sleep 60", 0, b"", truncated=False, timed_out=False, wall_s=60.0)
    with pytest.raises(Fenced):
        await turns.put_execution(cluster.db, rollout, 0, late)
    with pytest.raises(Fenced):
        await rollouts.put_patch(cluster.db, rollout, 0, b"late")
    assert await cluster.row(rollout) == row


async def test_a_healthy_rollout_is_left_alone(cluster, sweep: Sweep) -> None:
    cluster.policy.say = lambda rollout, turn: (FIX, SUBMIT)[turn]
    cluster.policy.gate = asyncio.Event()
    campaign, group, [rollout] = await cluster.make_rollouts()
    handle = await cluster.start(rollout, campaign, group)

    async def is_held() -> bool:
        return (await cluster.row(rollout)).phase is RolloutPhase.RUNNING

    await until(is_held)
    before = await cluster.row(rollout)
    found = await sweep()
    assert (found.num_rollouts_ended, found.num_rollouts_alive) == (0, 1)
    assert await cluster.row(rollout) == before
    # Its group has no workflow here, but is not closed before its last rollout has ended.
    assert (await groups.get(cluster.db, group)).status is GroupStatus.RUNNING
    cluster.policy.gate.set()
    assert (await handle.result()).reward == 1.0
    assert (await sweep()).num_groups_closed == 1
    # Closed as its own workflow would have closed it: one reward is compared with nothing.
    assert (await groups.get(cluster.db, group)).status is GroupStatus.FLAT


async def test_two_sweeps_at_once_end_everything_once(cluster, sweep: Sweep) -> None:
    group, ids, handles = await in_the_middle_of_a_command(cluster, size=3)
    for handle in handles:
        await handle.terminate()
    found = await asyncio.gather(sweep(), sweep())
    assert sum(each.num_rollouts_ended for each in found) == 3
    assert {(await cluster.row(rollout)).stop_reason for rollout in ids} == {StopReason.TERMINATED}
    assert (await groups.get(cluster.db, group)).status is GroupStatus.CANCELLED
    await cluster.reaper.reap()
    assert not [s for s in await cluster.open_sandboxes() if group.replace("/", ".") in s]


async def test_a_terminated_group_is_closed_and_its_campaign_goes_on(cluster, sweep: Sweep) -> None:
    """The bound of the campaign is one group: without an end of this one no other would begin."""
    campaign = await make_campaign(cluster, group_size=2)
    first, second = group_id(campaign, 0), group_id(campaign, 1)
    cluster.policy.say = lambda rollout, turn: (bash("true"), SUBMIT)[turn]
    let_go = asyncio.Event()

    asked = set[str]()

    async def hold(rollout: str) -> None:
        """At its second reply: its first command has run by then."""
        if rollout in asked and rollout.startswith(first):
            await let_go.wait()
        asked.add(rollout)

    cluster.policy.hold = hold

    async def begun() -> bool:
        return await commands_begun(cluster, first) == 2

    async def is_closed() -> bool:
        await sweep()
        return (await groups.get(cluster.db, first)).status is not GroupStatus.RUNNING

    async def replaced() -> bool:
        stored = await groups.list_groups(cluster.db, campaign)
        return [each.id for each in stored][:2] == [first, second]

    async with campaign_running(cluster, campaign) as handle:
        await until(begun)
        await cluster.client.get_workflow_handle(group_workflow(first)).terminate()
        await sweep()
        assert (await groups.get(cluster.db, first)).status is GroupStatus.RUNNING
        # Its rollouts play on without it, and only then it is closed.
        let_go.set()
        await until(is_closed)
        assert (await groups.get(cluster.db, first)).status is GroupStatus.FLAT
        reasons = {(await cluster.row(rollout_id(first, n))).stop_reason for n in range(2)}
        assert reasons == {StopReason.SUBMITTED}
        await until(replaced)
        await handle.terminate()


async def test_a_capped_campaign_never_has_more_sandboxes(cluster) -> None:
    cluster.policy.say = lambda rollout, turn: (FIX, SUBMIT)[turn]
    campaign = await make_campaign(cluster, group_size=6, max_open=2)
    handle = await cluster.client.start_workflow(
        Workflow.GROUP,
        GroupInput(campaign=campaign, index=0, policy_version=0),
        id=group_workflow(group_id(campaign, 0)),
        task_queue=ROLLOUT_QUEUE,
        result_type=FinishGroupResult,
    )
    finished = asyncio.create_task(handle.result())
    seen: list[int] = []
    while not finished.done():
        leases = await sandboxes.open_leases(cluster.db)
        ours = [lease for lease in leases if lease.rollout.startswith(f"{campaign}/")]
        seen.append(len([each for each in ours if each.purpose is SandboxPurpose.AGENT]))
        await asyncio.sleep(0.01)
    assert max(seen) == 2
    assert (await finished).status is GroupStatus.FLAT
    ids = [rollout_id(group_id(campaign, 0), n) for n in range(6)]
    rewards = [(await cluster.row(RolloutId(each))).reward for each in ids]
    assert rewards == [1.0] * 6
