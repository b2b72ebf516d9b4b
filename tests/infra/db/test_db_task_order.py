"""Which tasks an evaluation goes over and in which order: stored with the run, in a real store."""

import pytest
from store_records import task

from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import selections, tasks
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, TaskId

NUM_TASKS = 12


def config(name: str, unverified: str = "use", **given: object) -> EvaluationConfig:
    made_up = {"source": "made-up", "unverified": unverified}
    policy = {"api": "openai", "model": "m", "engines": ["http://127.0.0.1:9"]}
    raw = {"name": name, "tasks": made_up, "policy": policy, "split": "train", **given}
    return EvaluationConfig.model_validate(raw)


async def played(db: Database, name: str, **given: object) -> list[TaskId]:
    """The tasks of a new run, in the order in which they are played."""
    evaluation = config(name, **given)
    await launch.create(db, evaluation)
    return await selections.task_ids(db, evaluation, "train")


async def test_tasks_are_matched_then_shuffled_then_limited(db: Database) -> None:
    await tasks.put_tasks(db, [task(number) for number in range(NUM_TASKS)])
    listed = [task(number).id for number in range(NUM_TASKS)]

    assert await played(db, "all") == listed
    assert await played(db, "matched", task=r"-\d$", slice="4:11") == listed[4:10]
    shuffled = await played(db, "shuffled", shuffle=3)
    assert shuffled != listed and sorted(shuffled) == sorted(listed)
    assert await played(db, "other-seed", shuffle=4) != shuffled
    # A limit, an expression or a slice leaves the order of the others as it is.
    assert await played(db, "few", shuffle=3, limit=5) == shuffled[:5]
    small = [id for id in shuffled if id in listed[:10]]
    assert await played(db, "combined", shuffle=3, task=r"-\d$", limit=4) == small[:4]
    assert await played(db, "one", task="^train-1$") == listed[1:2]


async def test_the_order_is_stored_and_other_values_are_refused(db: Database) -> None:
    await tasks.put_tasks(db, [task(number) for number in range(NUM_TASKS)])
    given = {"shuffle": 3, "limit": 5, "task": "train"}
    before = await played(db, "stored", **given)
    # Imported meanwhile: a new run would play it, this one does not.
    await tasks.put_tasks(db, [task(number) for number in range(NUM_TASKS, 40)])
    assert await played(db, "stored", **given) == before
    assert await played(db, "new", **given) != before
    for other, told in (
        ({"shuffle": 4}, "shuffle: 3 -> 4"),
        ({"limit": None}, "limit: 5 -> None"),
        ({"task": "train-"}, "task: 'train' -> 'train-'"),
    ):
        with pytest.raises(UsageError, match=told):
            await launch.create(db, config("stored", **{**given, **other}))


async def test_a_limit_counts_tasks_that_can_be_used(db: Database) -> None:
    """Those that are skipped because nothing verified them do not use it up."""
    listed = [task(number) for number in range(4)]
    await tasks.put_tasks(db, listed)
    for name, limit in (("two", 2), ("three", 3)):
        with pytest.raises(UsageError, match="that are verified: "):
            await launch.create(db, config(name, unverified="skip", limit=limit))
    chosen = await selections.choose(db, config("asked", limit=2), "train")
    assert [each.position for each in chosen] == [0, 1]
    skipped = await selections.choose(db, config("skipping", unverified="skip", limit=2), "train")
    assert [each.position for each in skipped] == [None] * 4


async def test_an_expression_that_matches_no_id_stores_nothing(db: Database) -> None:
    await tasks.put_tasks(db, [task(number) for number in range(NUM_TASKS)])
    with pytest.raises(UsageError, match="whose id matches 'django'") as refused:
        await launch.create(db, config("nothing", task="django", slice="0:3"))
    assert "'train-0'" in refused.value.remedy and "within 0:3" in refused.value.message
    assert await campaigns.find(db, CampaignId("nothing")) is None
