"""A campaign that was cancelled, failed or reset anywhere finishes when started.

Of one that was terminated: test_reproducible_campaign.

Each is held at one point after the other, interrupted there, and started again (a reset one runs by
itself). One campaign for each point would play its rollouts ten times over, and show no more: what
an interruption loses, repeats or leaves behind is in the store when the campaign has finished, and
the next point is reached only by a campaign that continues.
"""

import asyncio
import contextlib
from collections.abc import Sequence

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

from cli.operations.runs import campaign_launch as launch
from infra.db.runs import campaigns
from mainspring.ids import campaign_workflow
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


EVEN_POINTS = [*POINTS.values()][0::2]


async def interrupt(
    cluster, way: str, handle: WorkflowHandle, point: str, trainer: ScriptedTrainer
) -> None:
    """Ends it (or resets it) while it is held at `point`."""
    if way == "cancel":
        await handle.cancel()
    elif way == "fail":
        trainer.failing.add(int(point[-1]) if point.startswith("train") else -1)
        broken = GroupDone(
            index=999, status=GroupStatus.MASKED, broken="RewardBroken: it is broken"
        )
        await handle.signal("group_done", broken)
    else:
        await reset(cluster, handle, share=float(way.removeprefix("reset to ")))


async def interrupted_and_resumed(
    cluster, way: str, points: Sequence[str], hold: Hold, config
) -> None:
    campaign = await launch.create(cluster.db, config)
    runs: list[str] = []
    async with trainer_of(cluster, campaign, hold) as trainer:
        await launch.start(cluster.client, cluster.db, campaign)
        handle = cluster.client.get_workflow_handle(campaign_workflow(campaign))
        for point, following in zip(points, (*points[1:], "nowhere"), strict=True):
            try:
                await until_reached(hold)
            except TimeoutError as error:
                raise AssertionError(f"{way}: {point} is never reached") from error
            runs.append((await handle.describe()).run_id)
            await interrupt(cluster, way, handle, point, trainer)
            # What is left of the ended run may continue too, but does nothing of a later point.
            hold.move(following)
            if way.startswith("reset"):
                continue
            with contextlib.suppress(WorkflowFailureError):
                await handle.result()
            record = await campaigns.get(cluster.db, campaign)
            expected = {"cancel": CampaignStatus.CANCELLED, "fail": CampaignStatus.FAILED}
            assert record.status is expected[way], (point, record)
            trainer.failing.clear()
            await launch.start(cluster.client, cluster.db, campaign)
            assert (await campaigns.get(cluster.db, campaign)).status not in campaigns.ENDS
        await until(lambda: has_ended(cluster, campaign))
        try:
            await check_finished(cluster, campaign)
        except AssertionError as error:
            raise AssertionError(f"{way} at {points}: {error}") from error
        await replay(cluster, handle.id, runs)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("way", "campaigns_points"),
    [
        # A cancelled group stays cancelled, and the next one has the next number.
        ("cancel", [EVEN_POINTS, ["/v0", "/g000000", "/v1", "train 2", "/g000003"]]),
        ("fail", [["/v0", "train 1", "/v1"], ["/g000002"]]),
        ("reset to 0", [["eval-v0000", "train 1"], ["/g000002"]]),
        ("reset to 0.5", [["/v0", "/v1", "/g000002"], ["/g000000", "train 2"]]),
        ("reset to 1", [["prepare", "/g000001", "train 2"], ["eval-v0002"]]),
    ],
)
async def test_a_campaign_resumes_at_any_step(
    cluster, way: str, campaigns_points: list[list[str]]
) -> None:
    cluster.policy.say = mixed
    held = []
    for points in campaigns_points:
        config = await small_config(cluster, num_steps=NUM_STEPS, max_staleness=0)
        held.append((points, Hold(points[0]), config))
    hold_policy(cluster, {config.name: hold for _, hold, config in held})
    await asyncio.gather(*(interrupted_and_resumed(cluster, way, *each) for each in held))
