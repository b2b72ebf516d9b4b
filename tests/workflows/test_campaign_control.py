"""What an operator does to a campaign, and what a campaign that cannot continue tells him."""

import asyncio

import pytest
from finished import check_finished, has_ended
from scripted import SUBMIT
from scripted_trainer import Hold, hold_policy, mixed, small_config, trainer_of, until_reached
from temporalio.client import WorkflowFailureError

from cli.operations.runs import campaign_control
from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.training import discards, policies, steps
from infra.sandbox.protocol import SandboxLost, SandboxRefused
from infra.temporal.lost_campaigns import settle_campaign
from mainspring.artifacts import layout
from mainspring.errors import EngineError, UsageError
from mainspring.ids import CampaignId, group_id
from mainspring.status import CampaignStatus, GroupKind, GroupStatus, RolloutPhase
from tests.waiting import until

NEVER = "nowhere"


async def begin(cluster, hold: Hold, **settings) -> tuple[CampaignId, object]:
    cluster.policy.say = mixed
    config = await small_config(cluster, max_staleness=0, **settings)
    hold_policy(cluster, {config.name: hold})
    return await launch.create(cluster.db, config), config


async def ended(cluster, campaign: CampaignId) -> campaigns.CampaignRecord:
    await until(lambda: has_ended(cluster, campaign))
    return await campaigns.get(cluster.db, campaign)


async def ends_of_groups(cluster, campaign: CampaignId, number: int) -> set[GroupStatus]:
    """How the first `number` groups ended. One more may have begun; it is cancelled."""

    async def none_runs() -> bool:
        stored = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
        return all(each.status is not GroupStatus.RUNNING for each in stored)

    await until(none_runs)
    stored = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
    assert {each.status for each in stored[number:]} <= {GroupStatus.CANCELLED}
    return {each.status for each in stored[:number]}


async def test_a_batch_is_dropped_under_a_running_trainer(cluster) -> None:
    hold = Hold("train 1")
    campaign, _ = await begin(cluster, hold)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        seen = await discards.planned_batch(cluster.db, campaign)
        told = await campaign_control.drop_batch(cluster.client, cluster.db, campaign)
        assert f"campaign {campaign}: step 1 is not planned any more" in told
        # The same order again, by a script that was cut off: nothing else is dropped.
        assert not await discards.drop_batch(cluster.db, campaign, seen)
        dropped = await groups.get(cluster.db, seen.groups[0])
        assert dropped.status is GroupStatus.MASKED
        assert dropped.note == "dropped by an operator with step 1"

        async def is_replanned() -> bool:
            planned = await steps.step_groups(cluster.db, campaign, 1)
            return bool(planned) and planned != seen.groups

        await until(is_replanned)
        hold.released.set()
        assert (await ended(cluster, campaign)).status is CampaignStatus.FINISHED
    await check_finished(cluster, campaign)
    assert await steps.step_groups(cluster.db, campaign, 1) == [group_id(campaign, 1)]
    with pytest.raises(UsageError, match="no planned batch"):
        await campaign_control.drop_batch(cluster.client, cluster.db, campaign)


async def test_a_step_that_cannot_be_trained_ends_the_campaign_at_once(cluster) -> None:
    hold = Hold(NEVER)
    campaign, _ = await begin(cluster, hold)
    async with trainer_of(cluster, campaign, hold) as trainer:
        trainer.failing.add(1)
        await launch.start(cluster.client, cluster.db, campaign)
        record = await ended(cluster, campaign)
        assert record.status is CampaignStatus.FAILED
        assert record.error == "step 1: the gradient is not a number\n  lower trainer.lr"
        assert trainer.num_attempts == 1
        [batch] = await steps.step_groups(cluster.db, campaign, 1)
        told = await campaign_control.drop_batch(cluster.client, cluster.db, campaign)
        assert told.endswith("when it is started again")
        trainer.failing.clear()
        await launch.start(cluster.client, cluster.db, campaign)
        assert (await ended(cluster, campaign)).status is CampaignStatus.FINISHED
    await check_finished(cluster, campaign)
    assert (await groups.get(cluster.db, batch)).status is GroupStatus.MASKED


async def test_the_newest_version_is_rolled_back_and_made_again(cluster, tmp_path) -> None:
    hold = Hold("train 3")
    campaign, _ = await begin(cluster, hold)
    home = tmp_path
    files = layout.policy(home, campaign, 2)
    files.mkdir(parents=True)

    async def roll_back() -> str:
        return await campaign_control.rollback(cluster.client, cluster.db, home, campaign)

    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        with pytest.raises(UsageError, match="is running: its versions are in use"):
            await roll_back()
        await handle.cancel()
        await ended(cluster, campaign)
        hold.released.set()
        taken = await steps.step_groups(cluster.db, campaign, 2)
        told = await roll_back()
        assert "policy version 2 is discarded, version 1 is the newest" in told
        assert await discards.rollback(cluster.db, campaign, 2) is None
        assert [p.version for p in await policies.list_policies(cluster.db, campaign)] == [0, 1]
        for group in await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN):
            if group.id in taken or group.index == 2:
                assert group.status is GroupStatus.MASKED
                assert group.note == "discarded by an operator with policy version 2"
        assert not files.exists() and (files.parent / "v00002.discarded-1").exists()
        before = len(cluster.policy.published)
        await launch.start(cluster.client, cluster.db, campaign)
        assert (await ended(cluster, campaign)).status is CampaignStatus.FINISHED
    await check_finished(cluster, campaign)
    ours = [each for each in cluster.policy.published[before:] if f"/{campaign}/" in each]
    assert [each[-2:] for each in ours] == ["v1", "v2", "v3"]
    # The version was measured again, with rollouts of its own.
    evaluated = await rollouts.list_rollouts(
        cluster.db, group=(await _evaluation(cluster, campaign, 2)).id
    )
    assert [each.epoch for each in evaluated] == [1]
    with pytest.raises(UsageError, match="is finished"):
        await roll_back()


async def _evaluation(cluster, campaign: CampaignId, version: int) -> groups.GroupRecord:
    stored = await groups.list_groups(cluster.db, campaign, GroupKind.EVAL)
    return next(each for each in stored if each.policy_version == version)


async def test_version_0_stays(cluster) -> None:
    hold = Hold("train 1")
    campaign, _ = await begin(cluster, hold)
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        await handle.cancel()
        await ended(cluster, campaign)
        with pytest.raises(UsageError, match="no version before version 0"):
            await campaign_control.rollback(
                cluster.client, cluster.db, layout.Path("/nowhere"), campaign
            )


async def test_what_does_not_run_is_named_with_its_status(cluster) -> None:
    hold = Hold("train 1")
    campaign, _ = await begin(cluster, hold)
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        assert not await settle_campaign(cluster.db, cluster.client, campaign)
        await handle.terminate()
        assert await settle_campaign(cluster.db, cluster.client, campaign)
        record = await campaigns.get(cluster.db, campaign)
        assert record.status is CampaignStatus.FAILED
        assert record.error == ("its workflow was terminated in Temporal; start it again to resume")
        with pytest.raises(
            UsageError, match=f"campaign {campaign} has already failed: nothing to pause"
        ):
            await campaign_control.set_paused(cluster.client, cluster.db, campaign, True, print)
        with pytest.raises(UsageError, match="nothing to cancel"):
            await campaign_control.cancel(cluster.client, cluster.db, campaign)
        await launch.start(cluster.client, cluster.db, campaign)
        assert not await settle_campaign(cluster.db, cluster.client, campaign)
        hold.released.set()
        assert (await ended(cluster, campaign)).status is CampaignStatus.FINISHED
    await check_finished(cluster, campaign)


async def test_groups_of_a_version_begin_once_it_is_published(cluster) -> None:
    hold = Hold("/v1")
    campaign, _ = await begin(cluster, hold)
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        progress = await handle.query("progress")
        assert progress["waiting_for"] == "publishing policy version 1"
        assert progress["waiting_queue"] == "rollout" and progress["waiting_since"] > 0
        await asyncio.sleep(1.0)
        stored = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
        assert [each.index for each in stored] == [0]
        hold.released.set()
        assert (await ended(cluster, campaign)).status is CampaignStatus.FINISHED
    versions = {
        each.index: each.policy_version
        for each in await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
    }
    assert versions == {0: 0, 1: 1, 2: 2}


async def test_equal_rewards_are_replaced_and_end_the_campaign(cluster) -> None:
    hold = Hold(NEVER)
    campaign, _ = await begin(cluster, hold, max_flat_groups=3)
    cluster.policy.say = lambda rollout, turn: SUBMIT
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    record = await campaigns.get(cluster.db, campaign)
    error = record.error or ""
    assert error.startswith("3 groups in a row had equal rewards, trainer.max_flat_groups is 3")
    assert "rollouts have reward 0, and" in error and "ended as submitted" in error
    assert await ends_of_groups(cluster, campaign, 3) == {GroupStatus.FLAT}
    assert await steps.list_steps(cluster.db, campaign) == []


@pytest.mark.parametrize(
    ("fault", "epochs"),
    [
        (SandboxLost("the node is gone"), [0, 1, 1, 1]),
        (EngineError("the engine refuses"), [0, 0, 0, 0]),
        (SandboxRefused("the task's image has no git"), [0, 0, 0, 0]),
    ],
)
async def test_too_few_scored_rollouts_end_the_campaign(cluster, fault, epochs) -> None:
    """3 of 4 rollouts are masked; where the fault may pass, each is played a second time."""
    hold = Hold(NEVER)
    campaign, _ = await begin(cluster, hold, group_size=4)

    async def fail(name: str) -> None:
        if f"{campaign}/g" in name and not name.endswith("/000"):
            raise fault

    cluster.policy.hold = fail
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    record = await campaigns.get(cluster.db, campaign)
    assert (record.error or "").startswith("in 2 groups in a row too few rollouts")
    assert fault.message in (record.error or "")
    assert await ends_of_groups(cluster, campaign, 2) == {GroupStatus.MASKED}
    played = await rollouts.list_rollouts(cluster.db, group=group_id(campaign, 0))
    assert [each.epoch for each in played] == epochs
    assert {each.phase for each in played} == {RolloutPhase.DONE}


async def test_a_masked_rollout_is_played_again_in_its_group(cluster) -> None:
    hold = Hold(NEVER)
    campaign, _ = await begin(cluster, hold, num_steps=3)
    failed: set[str] = set()

    async def fail_once(name: str) -> None:
        if f"{campaign}/g" in name and name not in failed:
            failed.add(name)
            raise SandboxLost("the node is gone")

    cluster.policy.hold = fail_once
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        assert (await ended(cluster, campaign)).status is CampaignStatus.FINISHED
    await check_finished(cluster, campaign)
    played = await rollouts.list_rollouts(cluster.db, group=group_id(campaign, 0))
    assert [(each.epoch, each.reward) for each in played] == [(1, 1.0), (1, 0.0)]
