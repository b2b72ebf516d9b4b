"""How a rollout is sampled follows from what its run stored: of a campaign by the split that is
measured, of its training groups and of other runs by [policy.sampling]."""

from store_records import task

from activities.rollouts import make_group
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.plans import run_plans
from infra.db.rollouts import groups
from infra.db.runs import campaigns
from infra.db.tasks import selections, tasks
from mainspring.config.campaign import CampaignConfig
from mainspring.config.sampling import SamplingConfig
from mainspring.ids import CampaignId, RolloutId, rollout_id
from mainspring.protocol.campaign import GroupInput
from mainspring.protocol.run import PolicyEvaluation
from mainspring.status import GroupKind

NAME = CampaignId("sampled")


async def measured(db: Database, config: CampaignConfig, split: str, *, greedy: bool) -> RolloutId:
    """A rollout of the evaluation that the campaign plays."""
    evaluation = PolicyEvaluation(split=split, policy_version=0, greedy=greedy)
    plan = await run_plans.planned(db, config, 0, evaluation)
    await groups.create_group(
        db,
        run_plans.part_id(NAME, 0, evaluation),
        NAME,
        GroupKind.EVAL,
        policy_version=0,
        split=split,
        sampling=plan.sampling,
        rollouts=plan.rollouts,
    )
    return plan.rollouts[0].id


async def test_each_split_is_sampled_as_the_campaign_tells(db: Database) -> None:
    trained = SamplingConfig(stop=("END",))
    config = CampaignConfig.model_validate(
        {
            "name": NAME,
            "tasks": {"source": "made-up", "unverified": "use"},
            "policy": {"model": "/m", "sampling": {"stop": ["END"]}},
            "evaluation": {
                "splits": ["train", "dev"],
                "sampling": {"train": {"top_p": 0.8, "temperature": 0.6}},
            },
        }
    )
    await tasks.put_tasks(db, [task(0), task(1), task(2, split="dev")])
    chosen = [
        each for split in config.splits for each in await selections.choose(db, config, split)
    ]
    await campaigns.create(db, config, chosen)
    ask = GroupInput(campaign=NAME, index=0, policy_version=0)
    group = await make_group(db, ask)
    sampled = await measured(db, config, "train", greedy=False)
    greedy = await measured(db, config, "train", greedy=True)
    other = await measured(db, config, "dev", greedy=False)
    own = SamplingConfig(top_p=0.8, stop=("END",))
    for _ in range(2):  # another process, or the same after a restart, reads the same
        cache = FactCache(db)
        of_group = await cache.rollout(rollout_id(group.id, 0))
        assert (group.split, of_group.sampling) == ("train", trained)
        facts = [await cache.rollout(rollout) for rollout in (sampled, greedy, other)]
        assert [each.sampling for each in facts] == [own, own, trained]
        assert [each.temperature for each in facts] == [0.6, 0, 1]
