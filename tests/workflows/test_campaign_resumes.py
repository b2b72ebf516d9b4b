"""A campaign that was cancelled, terminated, failed or reset anywhere finishes when started.

Each is held at one point, interrupted there, and started again (a reset one runs by itself).
"""

import asyncio
import contextlib

import pytest
from finished import NUM_STEPS, check_finished, has_ended, replay
from resetting import reset
from scripted_trainer import (
    Hold,
    ScriptedTrainer,
    hold_policy,
    mixed,
    small_config,
    trainer_of,
    until_reached,
)
from temporalio.client import WorkflowFailureError, WorkflowHandle

from cli.operations import campaign_launch as launch
from infra.db import campaigns
from mainspring.protocol.campaign import GroupDone
from mainspring.status import CampaignStatus, GroupStatus
from tests.waiting import until

POINTS = {
    "first policy": "prepare",
    "first publish": "/v0",
    "first evaluation": "eval-v0000",
    "groups of step 1": "/g000000",
    "train step 1": "train 1",
    "publish version 1": "/v1",
    "groups of step 2": "/g000001",
    "train step 2": "train 2",
    "evaluation of version 2": "eval-v0002",
    "groups of step 3": "/g000002",
    "last evaluation": "eval-v0003",
}


async def interrupt(
    cluster, way: str, handle: WorkflowHandle, hold: Hold, trainer: ScriptedTrainer
) -> None:
    """Ends it (or resets it) while it is held, then lets it go."""
    if way == "cancel":
        await handle.cancel()
    elif way == "terminate":
        await handle.terminate()
    elif way == "fail":
        trainer.failing.add(int(hold.point[-1]) if hold.point.startswith("train") else -1)
        broken = GroupDone(
            index=999, status=GroupStatus.MASKED, broken="RewardBroken: it is broken"
        )
        await handle.signal("group_done", broken)
    else:
        await reset(cluster, handle, share=float(way.removeprefix("reset to ")))
    hold.released.set()


async def interrupted_and_resumed(cluster, way: str, hold: Hold, config) -> None:
    campaign = await launch.create(cluster.db, config)
    async with trainer_of(cluster, campaign, hold) as trainer:
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        await interrupt(cluster, way, handle, hold, trainer)
        if not way.startswith("reset"):
            with contextlib.suppress(WorkflowFailureError):
                await cluster.client.get_workflow_handle(handle.id).result()
            record = await campaigns.get(cluster.db, campaign)
            expected = {"cancel": CampaignStatus.CANCELLED, "fail": CampaignStatus.FAILED}
            assert way == "terminate" or record.status is expected[way], (hold.point, record)
            trainer.failing.clear()
            await launch.start(cluster.client, cluster.db, campaign)
            assert (await campaigns.get(cluster.db, campaign)).status not in campaigns.ENDS
        await until(lambda: has_ended(cluster, campaign))
        try:
            await check_finished(cluster, campaign)
        except AssertionError as error:
            raise AssertionError(f"{way} at {hold.point}: {error}") from error
        await replay(cluster, handle.id)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "points"),
    [
        ("cancel", [*POINTS.values()]),
        ("terminate", [*POINTS.values()][0::2]),
        ("fail", ["/v0", "train 1", "/v1", "/g000002"]),
        ("reset to 0", ["eval-v0000", "train 1", "/g000002"]),
        ("reset to 0.5", [*POINTS.values()][1::2]),
        ("reset to 1", ["prepare", "eval-v0002", "/g000001", "train 2"]),
    ],
)
async def test_a_campaign_resumes_at_any_step(cluster, way: str, points: list[str]) -> None:
    cluster.policy.say = mixed
    holds: dict[str, Hold] = {}
    configs = {}
    for point in points:
        config = await small_config(cluster, num_steps=NUM_STEPS, max_staleness=0)
        holds[config.name], configs[config.name] = Hold(point), config
    hold_policy(cluster, holds)
    await asyncio.gather(
        *(interrupted_and_resumed(cluster, way, holds[name], configs[name]) for name in holds)
    )
