"""A campaign that measures its policy on another source than the one that it trains on, too."""

import pytest
from finished import has_ended
from scripted import bash
from scripted_trainer import FIX, Hold, small_config, trainer_of
from test_runs import put

from cli.campaign.campaign_screen import print_one
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs import campaign_view
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tasks import selections
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import Settings
from mainspring.errors import UsageError
from mainspring.status import CampaignStatus, GroupKind, StopReason, Verdict
from reports import one_rollout
from reports.summary import summary
from tests.waiting import until


async def config_with(cluster, *sources: dict[str, object]) -> CampaignConfig:
    made = await small_config(cluster, num_steps=2, every_steps=1)
    fields = made.model_dump()
    fields["evaluation"]["sources"] = sources
    fields["agents"] = {"patient": {"kind": "bash"}}
    return CampaignConfig.model_validate(fields)


async def test_each_source_is_measured_with_its_own_agent_and_limits(
    cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    other = await put(cluster, *((f"t{n}",) for n in range(3)))
    source = {"source": other, "split": "train", "name": "other", "limit": 2, "unverified": "use"}
    config = await config_with(cluster, source | {"step_limit": 5, "agent": "patient"})

    def say(rollout: str, turn: int) -> str:
        solves = "eval-" in rollout or rollout.endswith("/000")
        return FIX if solves and turn == 0 else bash(f"echo {turn}")

    cluster.policy.say = say
    campaign = await launch.create(cluster.db, config)
    async with trainer_of(cluster, campaign, Hold("nowhere")):
        await launch.start(cluster.client, cluster.db, campaign)
        await until(lambda: has_ended(cluster, campaign))
    record = await campaigns.get(cluster.db, campaign)
    assert (record.status, record.error) == (CampaignStatus.FINISHED, None)
    measured = await groups.list_groups(cluster.db, campaign, GroupKind.EVAL)
    assert {(each.policy_version, each.split, each.size) for each in measured} == {
        (0, "heldout", 1),
        (0, "other", 2),
        (1, "heldout", 1),
        (2, "heldout", 1),
        (2, "other", 2),
    }
    listed = await selections.task_ids(cluster.db, config, "other")
    for group in measured:
        played = await rollouts.list_rollouts(cluster.db, group=group.id)
        is_other = group.split == "other"
        assert [each.stop_reason for each in played] == [StopReason.STEP_LIMIT] * group.size
        assert [each.num_turns for each in played] == [5 if is_other else 3] * group.size
        assert {each.verdict for each in played} == {Verdict.RESOLVED}
        if is_other:
            assert [each.task for each in played] == listed
            view = await one_rollout.read(cluster.db, played[0].id)
            assert (view.agent, view.split) == ("patient", "other")
    trained = await groups.list_groups(cluster.db, campaign, GroupKind.TRAIN)
    assert {each.split for each in trained} == {"train"}
    view = await campaign_view.read(cluster.db, Settings(), campaign)
    assert {each.agent: each.num_rollouts for each in view.data.agents}["patient"] == 4
    found = summary(view.data)["evaluations"]
    assert set(found) == {"heldout", "other"}
    assert found["other"]["sampled"] == {"before": 1.0, "after": 1.0}
    print_one(view)
    assert "other" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"source": "nothing-like-it"}, "source 'nothing-like-it' has no tasks in split 'test'"),
        ({"split": "tset"}, "has no tasks in split 'tset'"),
    ],
)
async def test_a_source_without_tasks_is_refused_before_anything_is_stored(
    cluster, source: dict[str, str], message: str
) -> None:
    other = await put(cluster, ("t0",))
    config = await config_with(
        cluster, {"source": other, "name": "x", "unverified": "use"} | source
    )
    with pytest.raises(UsageError, match=message):
        await launch.create(cluster.db, config)
    assert await campaigns.find(cluster.db, launch.campaign_id(config.name)) is None


async def test_a_source_that_is_written_wrong_is_told_with_the_nearest_one(cluster) -> None:
    other = await put(cluster, ("t0",))
    config = await config_with(cluster, {"source": f"{other}x", "split": "train", "name": "x"})
    with pytest.raises(UsageError, match=f"did you mean the source '{other}'"):
        await launch.create(cluster.db, config)
