"""What a curriculum reads of the store: a campaign's own tasks, and an evaluation's pass rates."""

import pytest
from store_records import CAMPAIGN, add_claimed_rollout, config, finish, put_two_turns, task

from activities.rollouts import make_group
from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tasks import selections, task_histories, tasks
from infra.db.tasks.selections import pass_rates
from infra.db.training import policies
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.curricula.protocol import TaskHistory
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId, eval_group_id, group_id, rollout_id
from mainspring.protocol.campaign import GroupInput
from mainspring.status import CampaignStatus, Exclusion, GroupKind
from reports.collect import collect

IDS = [task(n).id for n in range(4)]


def campaign(name: str, **curriculum) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {
            "name": name,
            "tasks": {"source": "made-up", "unverified": "use"},
            "policy": {"model": "/m"},
            "curriculum": curriculum,
            "evaluation": {"splits": ["train"]},
            "trainer": {"group_size": 2},
        }
    )


async def played(
    db: Database, name: CampaignId, index: int, which: TaskId, rewards: list[float | None]
) -> None:
    group = group_id(name, index)
    new = [groups.NewRollout(rollout_id(group, n), which, n, 1.0) for n in range(len(rewards))]
    await groups.create_group(
        db,
        group,
        name,
        GroupKind.TRAIN,
        index=index,
        task=which,
        policy_version=0,
        split="train",
        rollouts=new,
    )
    for rollout, reward in zip(new, rewards, strict=True):
        if reward is not None:
            await ended(db, rollout.id, reward)
    if None not in rewards:
        await groups.finish_group(db, group)


async def ended(db: Database, rollout, reward: float) -> None:
    claim = await rollouts.claim(db, rollout, "run")
    await put_two_turns(db, rollout, claim.epoch, seed=f"{rollout}")
    await finish(db, rollout, claim.epoch, reward)


async def test_a_history_is_of_the_newest_groups_that_ended(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    name = CampaignId("c")
    await campaigns.create(db, campaign("c", kind="band"))
    await policies.put_first_policy(db, name, "/m", "/c")
    await played(db, name, 0, IDS[0], [1.0, 1.0])  # flat
    await played(db, name, 1, IDS[0], [1.0, 0.0])
    await played(db, name, 2, IDS[0], [0.0, 0.0])
    await played(db, name, 3, IDS[1], [1.0, None])  # in flight
    found = await task_histories.read(db, name, IDS, 2)
    assert found == [TaskHistory(4, 1), TaskHistory(num_running=1), TaskHistory(), TaskHistory()]
    found = await task_histories.read(db, name, IDS, 9)
    assert found[0] == TaskHistory(6, 3)


async def test_a_group_keeps_its_task_whatever_is_known_later(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    name = CampaignId("c")
    await campaigns.create(db, campaign("c", kind="band", outside=0.0))
    await policies.put_first_policy(db, name, "/m", "/c")
    for n in range(3):
        await played(db, name, n, IDS[n], [0.0, 0.0])
    ask = GroupInput(campaign=name, index=3, policy_version=0)
    first = await make_group(db, ask)
    assert first.task == IDS[3], "the others are never solved"
    for rollout in await rollouts.list_rollouts(db, group=first.id):
        await ended(db, rollout.id, 0.0)
    assert (await make_group(db, ask)).task == IDS[3]


async def evaluated(db: Database, rates: list[tuple[float, ...]]) -> CampaignId:
    name = CampaignId("measured")
    raw = {"name": name, "tasks": {"source": "made-up", "unverified": "use"}}
    raw |= {"split": "train", "samples": 2, "policy": {"model": "m", "api": "openai"}}
    raw["policy"]["engines"] = ["http://127.0.0.1:1"]
    await campaigns.create(db, EvaluationConfig.model_validate(raw))
    group = eval_group_id(name, "train", "sampled", 0)
    new = [
        groups.NewRollout(rollout_id(group, 2 * n + k), IDS[n], 2 * n + k, 1.0)
        for n, rewards in enumerate(rates)
        for k in range(len(rewards))
    ]
    await groups.create_group(
        db, group, name, GroupKind.EVAL, policy_version=0, split="train", rollouts=new
    )
    rewards = [reward for each in rates for reward in each]
    for rollout, reward in zip(new, rewards, strict=True):
        await ended(db, rollout.id, reward)
    return name


async def test_tasks_are_left_out_by_their_pass_rate(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    name = await evaluated(db, [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
    assert await pass_rates(db, name) == {IDS[0]: 0.0, IDS[1]: 0.5, IDS[2]: 1.0}
    bounds = {"pass_rates_of": name, "min_pass_rate": 0.1, "max_pass_rate": 0.9}
    with pytest.raises(UsageError, match="is created: its pass rates are not all there"):
        await launch.create(db, campaign("c", **bounds))
    await campaigns.set_status(db, name, CampaignStatus.FINISHED)
    stored = await launch.create(db, campaign("c", **bounds))
    assert await selections.task_ids(db, campaign("c"), "train") == [IDS[1]]
    assert await selections.left_out(db, stored) == {
        Exclusion.NO_PASS_RATE: 1,
        Exclusion.PASS_RATE_HIGH: 1,
        Exclusion.PASS_RATE_LOW: 1,
    }
    assert await launch.left_out(db, stored) == (
        "3 tasks are excluded: 1 no pass rate, 1 pass rate high, 1 pass rate low"
    )


async def test_a_filter_that_leaves_nothing_or_names_no_evaluation_is_refused(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    name = await evaluated(db, [(0.0, 0.0), (1.0, 1.0)])
    await campaigns.set_status(db, name, CampaignStatus.FINISHED)
    bounds = {"pass_rates_of": name, "min_pass_rate": 0.4, "max_pass_rate": 0.6}
    with pytest.raises(UsageError, match=r"0\.4 to 0\.6 in evaluation measured: 1 pass rate low"):
        await launch.create(db, campaign("c", **bounds))
    with pytest.raises(UnknownId):
        await launch.create(db, campaign("c", pass_rates_of="no-such"))
    await add_claimed_rollout(db)
    with pytest.raises(UsageError, match="is a train, expected an evaluation"):
        await launch.create(db, campaign("c", pass_rates_of=CAMPAIGN))
    assert await campaigns.find(db, CampaignId("c")) is None
    assert config().curriculum.kind == "shuffled"


async def test_what_replaced_groups_cost_is_told(db: Database) -> None:
    await tasks.put_tasks(db, [task(n) for n in range(4)])
    name = CampaignId("c")
    await campaigns.create(db, campaign("c"))
    await policies.put_first_policy(db, name, "/m", "/c")
    assert (await collect(db, name)).totals.replaced_turns_share is None
    await played(db, name, 0, IDS[0], [1.0, 0.0])
    await played(db, name, 1, IDS[1], [1.0, 1.0])
    await played(db, name, 2, IDS[2], [0.0, 0.0, 0.0])
    totals = (await collect(db, name)).totals
    assert (totals.num_groups_flat, totals.replaced_turns_share) == (2, 5 / 7)
