"""A campaign that trains on two task sets: which groups are of which, whatever happens to it."""

import uuid

import pytest
from finished import has_ended
from scripted import SUBMIT
from scripted_trainer import FIX, Hold, small_config, trainer_of, until_reached
from temporalio.client import WorkflowFailureError
from test_runs import put

from activities.rollouts import make_group
from cli.campaign.campaign_screen import print_one
from cli.operations.checks.checklist_item import State
from cli.operations.checks.task_items import of_the_tasks
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs import campaign_view
from infra.db.plans.forecast import upcoming
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tasks import selections
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import Settings
from mainspring.curricula.shuffled import task_position
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, NodeId, campaign_workflow
from mainspring.protocol.campaign import GroupInput
from mainspring.status import CampaignStatus, GroupKind, StopReason
from reports import one_rollout
from reports.summary import summary
from tests.waiting import until

NODE = NodeId("elsewhere")


async def two_sets(cluster, **fields: object) -> CampaignConfig:
    """Two sets with weights of 2 to 1, and the split of another source to measure on."""
    made = await small_config(cluster, num_steps=3, groups_per_step=2, every_steps=3)
    second = await put(cluster, *((f"t{n}",) for n in range(3)))
    third = await put(cluster, ("m0",))
    dumped = made.model_dump()
    return CampaignConfig.model_validate(
        dumped
        | {
            "name": f"{made.name}-{uuid.uuid4().hex[:4]}",
            "agents": {"brief": {"kind": "bash", "step_limit": 1}},
            "tasks": [
                {"source": made.tasks.source, "name": "first", "weight": 2, "unverified": "use"},
                {"source": second, "name": "second", "unverified": "use", "agent": "brief"},
            ],
            "evaluation": dumped["evaluation"]
            | {
                "splits": [],
                "sources": [
                    {"source": third, "split": "train", "name": "measured", "unverified": "use"}
                ],
            },
        }
        | fields
    )


def say(rollout: str, turn: int) -> str:
    """The first rollout of each group solves its task: no group is flat."""
    return FIX if (rollout.endswith("/000") or "eval-" in rollout) and turn == 0 else SUBMIT


async def test_groups_follow_the_weights_through_an_interruption(
    cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    config = await two_sets(cluster)
    assert not [
        each for each in await of_the_tasks(config, cluster.db) if each.state is State.MISSING
    ]
    cluster.policy.say = say
    campaign = await launch.create(cluster.db, config)
    hold = Hold("train 2")
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        hold.move("nowhere")
        await launch.start(cluster.client, cluster.db, campaign)
        await until(lambda: has_ended(cluster, campaign))
        await cluster.client.get_workflow_handle(campaign_workflow(campaign)).result()
    record = await campaigns.get(cluster.db, campaign)
    assert (record.status, record.error) == (CampaignStatus.FINISHED, None)
    lists = {label: await selections.task_ids(cluster.db, config, label) for label in config.splits}
    trained = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
    assert {each.split for each in trained} == {"first", "second"}
    for group in trained:
        assert group.index is not None
        label, own = config.label_of_draw(group.index)
        listed = lists[label]
        place = task_position(config.order_seed(label), own, len(listed))
        assert (group.split, group.task) == (label, listed[place])
        played = await rollouts.list_rollouts(cluster.db, group=group.id)
        if label == "second" and played[0].stop_reason is not StopReason.CANCELLED:
            assert [each.num_turns for each in played] == [1, 1]  # the limit of its own agent
            assert (await one_rollout.read(cluster.db, played[0].id)).agent == "brief"
    measured = await groups.list_groups(cluster.db, campaign, GroupKind.EVAL)
    assert {(each.policy_version, each.split) for each in measured} == {
        (0, "measured"),
        (3, "measured"),
    }
    view = await campaign_view.read(cluster.db, Settings(), campaign)
    assert [(each.name, each.kind) for each in view.data.sets] == [
        ("first", GroupKind.TRAIN),
        ("second", GroupKind.TRAIN),
        ("measured", GroupKind.EVAL),
    ]
    found = summary(view.data)
    assert [each["name"] for each in found["sources"]] == ["first", "second", "measured"]
    assert "brief" in found["agents"]
    print_one(view)
    shown = capsys.readouterr().out
    assert "trained on first: " in shown and "trained on second: " in shown


async def test_two_sets_never_share_what_is_made_twice(cluster) -> None:
    """Each draw is the same when it is made again, and forecasts name the tasks that come."""
    config = await two_sets(cluster)
    campaign = await launch.create(cluster.db, config)
    await campaigns.set_status(cluster.db, campaign, CampaignStatus.RUNNING)
    coming = [each for each in await upcoming(cluster.db, NODE, 100) if each.campaign == campaign]
    made = [
        await make_group(
            cluster.db, GroupInput(campaign=CampaignId(campaign), index=index, policy_version=0)
        )
        for index in (0, 1, 2, 0)
    ]
    assert made[0] == made[3]
    assert [each.split for each in made[:3]] == ["first", "first", "second"]
    size = config.trainer.group_size
    assert [each.task for each in coming] == [made[0].task] * size + [made[1].task] * size
    await campaigns.set_status(cluster.db, campaign, CampaignStatus.CANCELLED)


@pytest.mark.parametrize("kind", ["band", "prioritized"])
async def test_a_curriculum_chooses_within_the_set_of_the_draw(cluster, kind: str) -> None:
    config = await two_sets(cluster, curriculum={"kind": kind})
    campaign = await launch.create(cluster.db, config)
    for index in range(6):
        group = await make_group(
            cluster.db, GroupInput(campaign=campaign, index=index, policy_version=0)
        )
        label, _ = config.label_of_draw(index)
        assert group.split == label
        assert group.task in await selections.task_ids(cluster.db, config, label)


async def test_a_set_without_a_task_is_refused_before_anything_is_stored(cluster) -> None:
    config = await two_sets(cluster)
    fields = config.model_dump()
    fields["tasks"][1]["split"] = "tset"
    wrong = CampaignConfig.model_validate(fields)
    [missing] = [
        each for each in await of_the_tasks(wrong, cluster.db) if each.state is State.MISSING
    ]
    assert "correct tasks.1 in the file" in missing.fix
    with pytest.raises(UsageError, match="has no tasks in split 'tset'"):
        await launch.create(cluster.db, wrong)
    assert await campaigns.find(cluster.db, CampaignId(wrong.name)) is None
