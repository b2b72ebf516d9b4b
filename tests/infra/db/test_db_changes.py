"""Changes of a stored campaign: each counts from one step, whatever happens at that moment."""

import asyncio
import random
from typing import Any

import pytest
from store_records import CAMPAIGN, add_ready_group, task
from store_records import config as any_config

from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.rollouts import groups
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns, changes
from infra.db.runs.changes import PendingChanges
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.files.layers import assignments
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import group_id, rollout_id
from mainspring.status import CampaignStatus, GroupKind

BY = "someone@somewhere"


def config(**trainer: int) -> CampaignConfig:
    return any_config(CAMPAIGN, **{"groups_per_step": 1, **trainer})


async def begin(db: Database) -> None:
    await tasks.put_tasks(db, [task(0)])
    await campaigns.create(db, config())
    await policies.put_first_policy(db, CAMPAIGN, "/models/v0", "/checkpoints/v0")


async def change(db: Database, *texts: str, from_step: int | None = None) -> PendingChanges:
    return await changes.add(db, CAMPAIGN, assignments(texts), BY, from_step)


async def at(db: Database, step: int) -> CampaignConfig:
    return training((await campaigns.get(db, CAMPAIGN)).at(step))


async def commit(db: Database, step: int) -> None:
    await steps.commit_step(
        db,
        CAMPAIGN,
        step,
        metrics={"loss": 0.5},
        policy_path=f"/models/v{step}",
        checkpoint=f"/checkpoints/v{step}",
    )


async def add_group(db: Database, index: int, version: int) -> None:
    group = group_id(CAMPAIGN, index)
    await groups.create_group(
        db,
        group,
        CAMPAIGN,
        GroupKind.TRAIN,
        index=index,
        task=task(0).id,
        policy_version=version,
        split="train",
        rollouts=[NewRollout(rollout_id(group, 0), task(0).id, 0, 1.0)],
    )


async def test_a_change_counts_from_the_first_step_that_is_not_planned(db: Database) -> None:
    await begin(db)
    before = await campaigns.get(db, CAMPAIGN)
    made = await change(db, "trainer.optimizer.lr=5e-7")
    assert [(c.from_step, c.before, c.after) for c in made.changes] == [(1, 1e-6, 5e-7)]
    await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    made = await change(db, "trainer.optimizer.lr=2e-7")
    assert [(c.from_step, c.before, c.after) for c in made.changes] == [(2, 5e-7, 2e-7)]
    assert [(await at(db, step)).trainer.optimizer.lr for step in (1, 2, 9)] == [5e-7, 2e-7, 2e-7]
    record = await campaigns.get(db, CAMPAIGN)
    assert record.config_digest == before.config_digest, "it is the same campaign"
    assert training(record.config).trainer.optimizer.lr == 5e-7, "step 1 is not done"
    await commit(db, 1)
    assert training((await campaigns.get(db, CAMPAIGN)).config).trainer.optimizer.lr == 2e-7
    assert (await change(db, "trainer.optimizer.lr=2e-7")).changes == []


async def test_a_change_of_rollouts_counts_from_the_first_version_without_any(
    db: Database,
) -> None:
    await begin(db)
    made = await change(db, "sandbox.memory_mb=512")
    assert made.changes[0].from_step == 1
    await add_group(db, 0, version=0)
    made = await change(db, "sandbox.memory_mb=256", "trainer.clip_high=0.3")
    assert {c.field: c.from_step for c in made.changes} == {
        "sandbox.memory_mb": 2,
        "trainer.clip_high": 1,
    }
    await add_ready_group(db, 1)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await commit(db, 1)
    await add_group(db, 2, version=1)
    cache = FactCache(db)
    of = [(await cache.rollout(rollout_id(group_id(CAMPAIGN, n), 0))).config for n in (0, 2)]
    assert [training(each).sandbox.memory_mb for each in of] == [512, 256]


async def test_changes_race_with_plans_and_groups_and_each_counts_from_one_step(
    db: Database,
) -> None:
    await begin(db)
    await change(db, "trainer.num_steps=40")
    rng, done = random.Random(5), asyncio.Event()
    seen_rates: dict[int, float] = {}
    seen_memory: dict[str, tuple[int, int]] = {}
    sizes: dict[int, tuple[int, int]] = {}

    async def train() -> None:
        index = 0
        for step in range(1, 16):
            cache = FactCache(db)
            for _ in range(2):
                await add_group(db, index := index + 1, version=step - 1)
                rollout = rollout_id(group_id(CAMPAIGN, index), 0)
                facts = await cache.rollout(rollout)
                seen_memory[rollout] = step, training(facts.config).sandbox.memory_mb
                await groups.finish_group(db, group_id(CAMPAIGN, index))
                await add_ready_group(db, index := index + 1)
            planned = await steps.plan_step(db, CAMPAIGN, step, 1)
            assert planned
            trainer = (await at(db, step)).trainer
            seen_rates[step] = trainer.optimizer.lr
            sizes[step] = len(planned), trainer.groups_per_step
            await asyncio.sleep(rng.random() * 0.01)
            await commit(db, step)
        done.set()

    async def set_fields() -> int:
        num = 0
        while not done.is_set():
            num += 1
            await change(
                db,
                f"trainer.optimizer.lr={num}e-9",
                f"sandbox.memory_mb={100 + num}",
                f"trainer.groups_per_step={1 + num % 2}",
            )
            await asyncio.sleep(rng.random() * 0.02)
        return num

    async with asyncio.TaskGroup() as both:
        both.create_task(train())
        setting = both.create_task(set_fields())
    assert setting.result() >= 30, "too few changes to meet anything"
    assert len(set(seen_rates.values())) > 5
    for step, rate in seen_rates.items():
        assert (await at(db, step)).trainer.optimizer.lr == rate, f"step {step}"
        assert sizes[step][0] == sizes[step][1] == (await at(db, step)).trainer.groups_per_step
    for rollout, (step, memory_mb) in seen_memory.items():
        assert (await at(db, step)).sandbox.memory_mb == memory_mb, rollout
        facts = await FactCache(db).rollout(rollout)  # type: ignore[arg-type]
        assert training(facts.config).sandbox.memory_mb == memory_mb, rollout


async def test_two_at_once_make_two_changes_in_one_order(db: Database) -> None:
    await begin(db)
    rates = [f"{n}e-8" for n in range(1, 9)]
    await asyncio.gather(*(change(db, f"trainer.optimizer.lr={rate}") for rate in rates))
    made = (await campaigns.get(db, CAMPAIGN)).changes
    assert [each.number for each in made] == [*range(1, 9)]
    assert [each.before for each in made] == [1e-6, *(each.after for each in made[:-1])]


async def test_a_step_may_be_given_if_it_is_not_too_early(db: Database) -> None:
    await begin(db)
    await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    with pytest.raises(UsageError, match="counts from step 2 at the earliest, not from step 1"):
        await change(db, "trainer.optimizer.lr=5e-7", from_step=1)
    await change(db, "trainer.optimizer.lr=5e-7", from_step=4)
    assert [(await at(db, step)).trainer.optimizer.lr for step in (3, 4)] == [1e-6, 5e-7]
    # One that is made later counts later, too.
    made = await change(db, "trainer.optimizer.lr=2e-7")
    assert [(c.from_step, c.before) for c in made.changes] == [(4, 5e-7)]
    with pytest.raises(UsageError, match="ends after step 100"):
        await change(db, "trainer.optimizer.lr=1e-7", from_step=101)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seed=3", "what a campaign is never changes: seed"),
        ("trainer.group_size=4", "never changes: trainer.group_size"),
        ("trainer.num_steps=1", "cannot end after step 1"),
    ],
)
async def test_what_cannot_be_changed_is_refused_and_nothing_is_stored(
    db: Database, text: str, told: str
) -> None:
    await begin(db)
    await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    with pytest.raises((UsageError, ConfigError), match=told):
        await change(db, "trainer.optimizer.lr=5e-7", text)
    assert (await campaigns.get(db, CAMPAIGN)).changes == ()


async def test_only_training_campaigns_are_changed(db: Database) -> None:
    evaluation = EvaluationConfig.model_validate(
        {"name": CAMPAIGN, "split": "heldout", "policy": {"model": "m", "api": "openai"}}
    )
    await campaigns.create(db, evaluation)
    with pytest.raises(UsageError, match="trains nothing"):
        await change(db, "concurrency=3")


async def test_a_finished_campaign_is_prolonged_or_refuses(db: Database) -> None:
    await begin(db)
    await change(db, "trainer.num_steps=1")
    await add_ready_group(db, 0)
    await steps.plan_step(db, CAMPAIGN, 1, 1)
    await commit(db, 1)
    assert await campaigns.finish(db, CAMPAIGN)
    with pytest.raises(UsageError, match="counts from step 2, and the campaign ends after step 1"):
        await change(db, "trainer.optimizer.lr=5e-7")
    made = await change(db, "trainer.optimizer.lr=5e-7", "trainer.num_steps=3")
    assert {c.from_step for c in made.changes} == {2}
    record = await campaigns.get(db, CAMPAIGN)
    assert (record.status, record.finished_at) == (CampaignStatus.CREATED, None)
    assert not await campaigns.finish(db, CAMPAIGN), "it has steps left"
    assert (await campaigns.get(db, CAMPAIGN)).status is CampaignStatus.CREATED


async def test_the_file_that_it_was_stored_with_resumes_it(db: Database) -> None:
    await begin(db)
    await change(db, "trainer.optimizer.lr=5e-7", "trainer.num_steps=7")
    assert not await campaigns.create(db, config())
    record = await campaigns.get(db, CAMPAIGN)
    assert training(record.config).trainer.num_steps == 7
    assert await campaigns.changed_values(db, config()) == []
    assert await campaigns.changed_values(db, config(num_steps=9)) == [
        (("trainer", "num_steps"), 9)
    ]
    with pytest.raises(UsageError, match="campaign set first"):
        await campaigns.create(db, config(num_steps=9))
    assert await campaigns.changed_values(db, config(num_steps=9, group_size=4)) == []


async def test_changes_that_count_later_do_not_keep_the_file_from_resuming(db: Database) -> None:
    await begin(db)
    await change(db, "trainer.optimizer.lr=5e-7", from_step=4)
    await change(db, "trainer.optimizer.lr=2e-7", "trainer.num_steps=120", from_step=9)
    assert not await campaigns.create(db, config())
    assert await campaigns.changed_values(db, config()) == []
    assert await campaigns.changed_values(db, config(num_steps=130)) == [
        (("trainer", "num_steps"), 130)
    ]
    assert training((await campaigns.get(db, CAMPAIGN)).config).trainer.num_steps == 100


@pytest.mark.parametrize("text", ["evaluation.concurrency=5", "tracking.mlflow.uri=http://h:5000"])
async def test_what_was_always_written_in_place_still_is(db: Database, text: str) -> None:
    await begin(db)
    made = await change(db, text)
    assert [each.from_step for each in made.changes] == [0]
    record = await campaigns.get(db, CAMPAIGN)
    assert record.as_stored == record.config != config()
    # The next file's own counts again.
    await campaigns.create(db, config())
    assert (await campaigns.get(db, CAMPAIGN)).config == config()


async def test_engines_change_at_once_for_all_steps(db: Database) -> None:
    await begin(db)
    urls: Any = ("http://127.0.0.1:4001", "http://127.0.0.1:4002")
    await change(db, f'policy.engines=["{urls[0]}", "{urls[1]}"]')
    assert (await at(db, 1)).policy.engines == (await at(db, 9)).policy.engines == urls
