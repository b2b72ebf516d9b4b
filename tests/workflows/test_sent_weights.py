"""A campaign with policy.publish = "collective": a version is sent, then looked at in engines."""

from finished import check_finished, has_ended, replay
from scripted_trainer import Hold, hold_policy, mixed, small_config, trainer_of, until_reached

from cli.operations.runs import campaign_launch as launch
from mainspring.ids import campaign_workflow
from mainspring.status import Publish
from tests.waiting import until


async def test_each_version_is_sent_and_then_published(cluster) -> None:
    cluster.policy.say = mixed
    config = await small_config(cluster)
    policy = config.policy.model_copy(update={"publish": Publish.COLLECTIVE})
    campaign = await launch.create(cluster.db, config.model_copy(update={"policy": policy}))
    hold = Hold("send 2")
    hold_policy(cluster, {campaign: hold})
    async with trainer_of(cluster, campaign, hold) as trainer:
        await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        assert trainer.sent == [1]
        assert not any(f"/{campaign}/v2" in each for each in cluster.policy.published)
        hold.move("nowhere")
        await until(lambda: has_ended(cluster, campaign))
        assert trainer.sent == [1, 2, 3]
    await check_finished(cluster, campaign)
    await replay(cluster, campaign_workflow(campaign), [])


async def test_a_campaign_that_publishes_from_disk_sends_nothing(cluster) -> None:
    cluster.policy.say = mixed
    campaign = await launch.create(cluster.db, await small_config(cluster))
    async with trainer_of(cluster, campaign, Hold("nowhere")) as trainer:
        await launch.start(cluster.client, cluster.db, campaign)
        await until(lambda: has_ended(cluster, campaign))
        assert trainer.sent == []
    await check_finished(cluster, campaign)
