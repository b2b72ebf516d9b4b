"""Campaigns that are changed while they run, when they have ended, and as they end."""

from typing import Any

import pytest
from finished import has_ended, replay
from scripted_trainer import Hold, hold_policy, mixed, small_config, trainer_of, until_reached

from activities import rollouts as rollout_activities
from cli.operations.runs import campaign_changes
from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import groups
from infra.db.runs import campaigns, changes, runs
from infra.db.training import steps
from mainspring.config.files.layers import assignments
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.status import CampaignStatus, GroupKind, GroupStatus
from tests.waiting import until


async def begin(cluster, hold: Hold, **settings: Any) -> CampaignId:
    cluster.policy.say = mixed
    config = await small_config(cluster, **settings)
    hold_policy(cluster, {config.name: hold})
    return await launch.create(cluster.db, config)


def never(pending: changes.PendingChanges) -> None:
    pytest.fail(f"asked for {pending.changes}")


async def change(cluster, campaign: CampaignId, *texts: str) -> campaign_changes.Changed:
    agreed: list[changes.PendingChanges] = []
    done = await campaign_changes.change(
        cluster.client, cluster.db, campaign, assignments(texts), agreed.append
    )
    shown, made = (
        [(c.field, c.after, c.from_step) for c in each]
        for each in (agreed[0].changes, done.changes)
    )
    assert shown == made
    return done


async def ends_as(cluster, campaign: CampaignId, num_steps: int) -> None:
    async def has_all() -> bool:
        done = await steps.list_steps(cluster.db, campaign)
        return await has_ended(cluster, campaign) and len(done) == num_steps

    await until(has_all)
    record = await campaigns.get(cluster.db, campaign)
    assert (record.status, record.error) == (CampaignStatus.FINISHED, None)
    trained = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
    assert GroupStatus.RUNNING not in {each.status for each in trained}


async def sizes(cluster, campaign: CampaignId) -> list[int]:
    done = await steps.list_steps(cluster.db, campaign)
    return [len(await steps.step_groups(cluster.db, campaign, each.step)) for each in done]


async def test_a_running_campaign_takes_changes_from_the_next_step_on(cluster) -> None:
    hold = Hold("train 1")
    campaign = await begin(cluster, hold, num_steps=2, max_staleness=0)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        done = await change(cluster, campaign, "trainer.num_steps=4", "trainer.groups_per_step=2")
        assert {each.from_step for each in done.changes} == {2}
        assert "it runs with them" in done.note
        hold.released.set()
        await ends_as(cluster, campaign, 4)
    assert await sizes(cluster, campaign) == [1, 2, 2, 2]
    evaluated = await groups.list_groups(cluster.db, campaign, GroupKind.EVAL)
    assert sorted(each.policy_version for each in evaluated) == [0, 2, 4]
    await replay(cluster, campaign_workflow(campaign), [])


async def test_a_finished_campaign_is_prolonged_and_finishes_again(cluster) -> None:
    hold = Hold("nowhere")
    campaign = await begin(cluster, hold, num_steps=1, max_staleness=1)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await ends_as(cluster, campaign, 1)
        with pytest.raises(UsageError, match="ends after step 1"):
            await change(cluster, campaign, "trainer.optimizer.lr=5e-7")
        done = await change(cluster, campaign, "trainer.num_steps=3")
        assert "started again" in done.note
        await ends_as(cluster, campaign, 3)
    again = await campaign_changes.change(
        cluster.client, cluster.db, campaign, assignments(["trainer.num_steps=3"]), never
    )
    assert not again.changes, "the same order again changes nothing"


async def test_a_shortened_campaign_leaves_no_group_playing(cluster) -> None:
    hold = Hold("train 1")
    campaign = await begin(cluster, hold, num_steps=6, max_staleness=3)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        with pytest.raises(UsageError, match="cannot end after step 1"):
            await change(cluster, campaign, "trainer.num_steps=1")
        await change(cluster, campaign, "trainer.num_steps=2")
        hold.released.set()
        await ends_as(cluster, campaign, 2)
    await replay(cluster, campaign_workflow(campaign), [])


async def test_a_campaign_that_is_prolonged_as_it_ends_runs_its_new_steps(
    cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow saw its last step and writes its end; the change comes first."""
    hold = Hold("nowhere")
    campaign = await begin(cluster, hold, num_steps=1, max_staleness=0)
    refuse_open_parts = runs.refuse_open_parts
    made: list[changes.PendingChanges] = []

    async def prolonged_before(db: Any, ending: CampaignId) -> None:
        if ending == campaign and not made:
            values = assignments(["trainer.num_steps=2"])
            made.append(await changes.add(db, campaign, values, "someone"))
        await refuse_open_parts(db, ending)

    monkeypatch.setattr(rollout_activities.runs, "refuse_open_parts", prolonged_before)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await ends_as(cluster, campaign, 2)
    assert made


async def test_a_changed_file_changes_the_campaign_once_it_is_agreed(cluster) -> None:
    config = await small_config(cluster, num_steps=2)
    assert await campaign_changes.change_by_file(cluster.db, config, never) == ()
    campaign = await launch.create(cluster.db, config)
    longer = config.model_copy(
        update={"trainer": config.trainer.model_copy(update={"num_steps": 5})}
    )

    class Refused(Exception):
        pass

    def refuse(pending: changes.PendingChanges) -> None:
        raise Refused

    with pytest.raises(Refused):
        await campaign_changes.change_by_file(cluster.db, longer, refuse)
    assert (await campaigns.get(cluster.db, campaign)).changes == ()
    [made] = await campaign_changes.change_by_file(cluster.db, longer, lambda pending: None)
    assert (made.field, made.before, made.after) == ("trainer.num_steps", 2, 5)
    assert await campaign_changes.change_by_file(cluster.db, longer, never) == ()
    assert await campaign_changes.change_by_file(cluster.db, config, never) == ()
    assert await launch.create(cluster.db, longer) == campaign
