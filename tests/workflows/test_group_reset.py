"""A group reset in Temporal continues with its own rollouts, or does nothing once closed."""

from datetime import timedelta

import pytest
from cluster import Cluster
from resetting import reset
from scripted_trainer import (
    Hold,
    hold_policy,
    mixed,
    small_config,
    start_first_group,
    until_reached,
)
from temporalio.client import WorkflowFailureError, WorkflowHandle

from activities.rollouts import make_group
from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import groups, rollouts
from mainspring.ids import (
    ROLLOUT_QUEUE,
    GroupId,
    group_workflow,
    rollout_id,
    rollout_workflow,
)
from mainspring.protocol.campaign import FinishGroupResult, GroupInput
from mainspring.protocol.names import Workflow
from mainspring.status import GroupStatus


async def start_group(cluster: Cluster, hold: Hold) -> tuple[WorkflowHandle, GroupId]:
    cluster.policy.say = mixed
    config = await small_config(cluster)
    hold_policy(cluster, {config.name: hold})
    return await start_first_group(cluster, config)


def newest(cluster: Cluster, handle: WorkflowHandle) -> WorkflowHandle:
    return cluster.client.get_workflow_handle(handle.id, result_type=FinishGroupResult)


async def test_an_open_group_continues_with_its_rollouts(cluster) -> None:
    for share in (0.0, 1.0):
        hold = Hold("/001")
        handle, group = await start_group(cluster, hold)
        await until_reached(hold)
        await reset(cluster, handle, share=share)
        hold.released.set()
        assert (await newest(cluster, handle).result()).status is GroupStatus.READY
        played = await rollouts.list_rollouts(cluster.db, group=group)
        assert [(each.epoch, each.reward) for each in played] == [(0, 1.0), (0, 0.0)]


async def test_a_closed_group_is_left_as_it_is(cluster) -> None:
    hold = Hold("nowhere")
    handle, group = await start_group(cluster, hold)
    assert (await handle.result()).status is GroupStatus.READY
    before = await groups.get(cluster.db, group)
    asked = len(cluster.policy.asked)
    await reset(cluster, handle, share=0.0)
    assert (await newest(cluster, handle).result()).status is GroupStatus.READY
    described = await newest(cluster, handle).describe()
    assert await described.memo_value("outcome") == "nothing done: the group is ready"
    assert await groups.get(cluster.db, group) == before
    assert len(cluster.policy.asked) == asked


async def test_a_rollout_that_is_reset_or_terminated_stays_in_its_group(cluster) -> None:
    for way in ("reset", "terminate"):
        hold = Hold("/001")
        handle, group = await start_group(cluster, hold)
        await until_reached(hold)
        rollout = cluster.client.get_workflow_handle(rollout_workflow(rollout_id(group, 1)))
        await (reset(cluster, rollout, share=0.0) if way == "reset" else rollout.terminate())
        hold.released.set()
        assert (await handle.result()).status is GroupStatus.READY, way
        played = await rollouts.list_rollouts(cluster.db, group=group)
        assert [(each.epoch, each.reward) for each in played] == [(0, 1.0), (1, 0.0)], way


async def test_a_group_that_is_cancelled_before_it_begins_is_closed(cluster: Cluster) -> None:
    campaign = await launch.create(cluster.db, await small_config(cluster))
    ask = GroupInput(campaign=campaign, index=0, policy_version=0)
    group = (await make_group(cluster.db, ask)).id
    handle = await cluster.client.start_workflow(
        Workflow.GROUP,
        ask,
        id=group_workflow(group),
        task_queue=ROLLOUT_QUEUE,
        start_delay=timedelta(seconds=2),
    )
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await groups.get(cluster.db, group)).status is GroupStatus.CANCELLED
