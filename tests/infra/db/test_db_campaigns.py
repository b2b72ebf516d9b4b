"""Campaigns and tasks are stored once and never change."""

import asyncio

import pytest
from store_records import CAMPAIGN, begin_campaign, config, task

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import STORED
from mainspring.errors import UsageError
from mainspring.status import CampaignStatus


async def test_created_once_by_many(db: Database) -> None:
    made = await asyncio.gather(*(campaigns.create(db, config()) for _ in range(5)))
    assert sorted(made) == [False, False, False, False, True]
    record = await campaigns.get(db, CAMPAIGN)
    assert record.config == config()
    assert record.status is CampaignStatus.CREATED
    assert [c.id for c in await campaigns.list_all(db)] == [CAMPAIGN]


async def test_another_configuration_names_its_fields(db: Database) -> None:
    await campaigns.create(db, config())
    with pytest.raises(UsageError) as error:
        await campaigns.create(db, config(group_size=4, num_steps=7))
    assert error.value.message.splitlines()[1:] == [
        "  trainer.group_size: 8 -> 4",
        "  trainer.num_steps: 100 -> 7",
    ]
    assert "another name" in error.value.remedy


async def test_a_file_names_its_campaign_also_where_a_method_has_a_default_since(
    db: Database,
) -> None:
    """And a file that sets the field names another one."""

    def read(context: object = None, **trainer: object) -> CampaignConfig:
        raw = {"name": CAMPAIGN, "trainer": {"warm_start": {}, "loss": "gspo", **trainer}}
        return CampaignConfig.model_validate(raw, context=context)

    stored = read(STORED)
    assert stored.trainer.clip_low == 0.2
    assert await campaigns.create(db, stored)
    assert not await campaigns.create(db, read())
    assert (await campaigns.get(db, CAMPAIGN)).config == stored
    with pytest.raises(UsageError, match=r"trainer\.clip_low: 0\.2 -> 0\.01"):
        await campaigns.create(db, read(clip_low=0.01))


async def test_unknown_campaign(db: Database) -> None:
    with pytest.raises(UnknownId, match="no campaign first"):
        await campaigns.get(db, CAMPAIGN)
    with pytest.raises(UnknownId):
        await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)


async def test_status_and_its_end(db: Database) -> None:
    await campaigns.create(db, config())
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FAILED, "no disk")
    failed = await campaigns.get(db, CAMPAIGN)
    assert (failed.error, failed.finished_at is not None) == ("no disk", True)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FAILED, "no disk")
    assert (await campaigns.get(db, CAMPAIGN)).finished_at == failed.finished_at
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    running = await campaigns.get(db, CAMPAIGN)
    assert (running.error, running.finished_at) == (None, None)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.FINISHED)
    late = await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    assert late is CampaignStatus.FINISHED


async def test_tasks_keep_their_order_and_are_put_once(db: Database) -> None:
    train = [task(n) for n in (3, 1, 2)]
    held = [task(0, split="heldout")]
    assert await tasks.put_tasks(db, train + held) == 4
    assert await tasks.put_tasks(db, [task(9), *train]) == 1
    ids = await tasks.task_ids(db, "made-up", "train")
    assert ids == ["train-3", "train-1", "train-2", "train-9"]
    assert await tasks.task_ids(db, "made-up", "train", limit=2) == ids[:2]
    assert await tasks.get_tasks(db, "made-up", "heldout") == held
    assert await tasks.get_task(db, ids[0]) == train[0]
    with pytest.raises(UnknownId, match="no task train-77"):
        await tasks.get_task(db, task(77).id)


async def test_concurrent_puts_number_each_task_once(db: Database) -> None:
    parts = [[task(n) for n in range(start, start + 40)] for start in (0, 20, 40, 0)]
    added = await asyncio.gather(*(tasks.put_tasks(db, part) for part in parts))
    assert sum(added) == 80
    assert len(await tasks.task_ids(db, "made-up", "train")) == 80


async def test_changed_content_is_refused_whole(db: Database) -> None:
    await tasks.put_tasks(db, [task(1)])
    with pytest.raises(UsageError, match="1 tasks are stored with other content: train-1"):
        await tasks.put_tasks(db, [task(2), task(1, issue="Fix it well.")])
    assert await tasks.task_ids(db, "made-up", "train") == ["train-1"]
    with pytest.raises(UsageError, match="stands twice"):
        await tasks.put_tasks(db, [task(5), task(5, issue="Other.")])
    with pytest.raises(UsageError, match="NUL"):
        await tasks.put_tasks(db, [task(6, issue="\0")])
    await tasks.put_tasks(db, [task(7, issue=r"the escape \u0000 is fine")])


async def test_first_policy_and_its_measured_gap(db: Database) -> None:
    await campaigns.create(db, config())
    assert await policies.latest_policy(db, CAMPAIGN) is None
    await begin_campaign(db)
    again = await policies.put_first_policy(db, CAMPAIGN, "/models/other")
    assert again.path == "/models/v0"
    assert await policies.latest_policy(db, CAMPAIGN) == again
    await policies.put_gap(db, CAMPAIGN, 0, None, 0)
    unmeasured = await policies.get_policy(db, CAMPAIGN, 0)
    assert (unmeasured.logprob_gap_max, unmeasured.num_gap_tokens) == (None, 0)
    for gap, tokens in ((1e-5, 10), (None, 0), (3e-5, 8), (3e-5, 8)):
        await policies.put_gap(db, CAMPAIGN, 0, gap, tokens)
    measured = await policies.get_policy(db, CAMPAIGN, 0)
    assert (measured.logprob_gap_max, measured.num_gap_tokens) == (3e-5, 10)
    with pytest.raises(UnknownId, match="policy version 3 of campaign first"):
        await policies.put_gap(db, CAMPAIGN, 3, 0.0, 1)
