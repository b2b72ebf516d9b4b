"""The last rollouts of a group, once enough of it were scored: ended after a turn, graded, kept."""

import asyncio

import pytest
from cluster import Cluster
from resetting import reset
from scripted import SUBMIT, bash
from scripted_trainer import FIX, small_config, start_first_group
from temporalio.client import WorkflowHandle

from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import rollouts
from infra.db.rollouts.rollouts import RolloutRecord
from infra.sandbox.protocol import SandboxLost
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.ids import ROLLOUT_QUEUE, GroupId, group_id, group_workflow
from mainspring.protocol.campaign import FinishGroupResult, GroupInput
from mainspring.protocol.names import Workflow
from mainspring.status import GroupStatus, StopReason
from tests.waiting import until

SLOW = ("/002", "/003")
STEP_LIMIT = 400


async def start_group(
    cluster: Cluster, together: int = 1, straggler_s: float = 0.0
) -> tuple[WorkflowHandle, GroupId]:
    """Of four, two of which are enough."""
    config = await small_config(cluster, group_size=4, quorum=2, straggler_s=straggler_s)
    config = config.model_copy(
        update={
            "agent": AgentConfig(step_limit=STEP_LIMIT),
            "rollout": RolloutConfig(turns_per_activity=together),
        }
    )
    return await start_first_group(cluster, config)


def endless(rollout: str, turn: int) -> str:
    """Two that submit, one of them a fix, and two that never do; the last one has fixed it too."""
    if rollout.endswith(("/000", "/003")) and turn == 0:
        return FIX
    return bash("sleep 0.1") if rollout.endswith(SLOW) else SUBMIT


async def played(cluster: Cluster, group: GroupId) -> list[RolloutRecord]:
    return await rollouts.list_rollouts(cluster.db, group=group)


@pytest.mark.parametrize("together", [1, 3])
async def test_the_last_ones_end_after_their_turn_and_are_graded(
    cluster: Cluster, together: int
) -> None:
    cluster.policy.say = endless
    handle, group = await start_group(cluster, together)
    assert (await handle.result()).status is GroupStatus.READY
    ends = [(each.stop_reason, each.reward) for each in await played(cluster, group)]
    assert ends == [
        (StopReason.SUBMITTED, 1.0),
        (StopReason.SUBMITTED, 0.0),
        (StopReason.STRAGGLER, 0.0),
        (StopReason.STRAGGLER, 1.0),
    ]
    assert await cluster.open_sandboxes() == []


async def test_they_have_their_own_seconds_left_however_long_they_waited(cluster: Cluster) -> None:
    """An engine that does not answer takes nothing from them."""
    answers = asyncio.Event()

    async def hold(rollout: str) -> None:
        if rollout.endswith(SLOW):
            await answers.wait()

    cluster.policy.say, cluster.policy.hold = endless, hold
    # A turn may take half a second on a busy machine.
    handle, group = await start_group(cluster, straggler_s=3.0)
    await until(lambda: two_ended(cluster, group))
    await asyncio.sleep(4.0)
    answers.set()
    assert (await handle.result()).status is GroupStatus.READY
    for each in (await played(cluster, group))[2:]:
        assert each.stop_reason is StopReason.STRAGGLER
        assert each.num_turns > 3


async def two_ended(cluster: Cluster, group: GroupId) -> bool:
    return sum(each.reward is not None for each in await played(cluster, group)) == 2


async def test_a_fault_after_that_masks_and_is_not_played_again(cluster: Cluster) -> None:
    broken = asyncio.Event()

    async def hold(rollout: str) -> None:
        if rollout.endswith(SLOW[0]):
            await broken.wait()
            raise SandboxLost("the node is gone")

    cluster.policy.say, cluster.policy.hold = endless, hold
    handle, group = await start_group(cluster)
    await until(lambda: two_ended(cluster, group))
    broken.set()
    assert (await handle.result()).status is GroupStatus.READY
    third = (await played(cluster, group))[2]
    assert (third.stop_reason, third.reward, third.epoch) == (StopReason.INFRA_FAULT, None, 0)


async def test_a_group_that_is_reset_tells_those_that_still_play(cluster: Cluster) -> None:
    """Its two scored rollouts are in the store, the other two are held within a turn."""
    answers = asyncio.Event()

    async def hold(rollout: str) -> None:
        if rollout.endswith(SLOW):
            await answers.wait()

    cluster.policy.say, cluster.policy.hold = endless, hold
    handle, group = await start_group(cluster)
    await until(lambda: two_ended(cluster, group))
    await reset(cluster, handle, share=0.0)
    answers.set()
    newest = cluster.client.get_workflow_handle(handle.id, result_type=FinishGroupResult)
    assert (await newest.result()).status is GroupStatus.READY
    ends = [(each.epoch, each.stop_reason) for each in await played(cluster, group)]
    assert ends[2:] == [(0, StopReason.STRAGGLER)] * 2


async def test_without_a_quorum_a_group_waits_for_all(cluster: Cluster) -> None:
    cluster.policy.say = lambda rollout, turn: (
        bash("true") if rollout.endswith("/001") and turn < 5 else SUBMIT
    )
    config = await small_config(cluster)
    config = config.model_copy(update={"agent": AgentConfig(step_limit=STEP_LIMIT)})
    campaign = await launch.create(cluster.db, config)
    ask = GroupInput(campaign=campaign, index=0, policy_version=0)
    group = group_id(campaign, 0)
    await cluster.client.execute_workflow(
        Workflow.GROUP, ask, id=group_workflow(group), task_queue=ROLLOUT_QUEUE
    )
    ends = [(each.stop_reason, each.num_turns) for each in await played(cluster, group)]
    assert ends == [(StopReason.SUBMITTED, 1), (StopReason.SUBMITTED, 6)]
