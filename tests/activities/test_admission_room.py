"""Groups that a campaign may start while its engines' KV caches are full."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from store_records import add_group, begin_campaign, config, task

from activities.campaigns import CampaignActivities
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.nodes.engines import KV_FULL, EngineLook
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from mainspring.config.tasks import TasksConfig
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import AdmitInput
from migrations import upgrade


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=4) as database:
        yield database


async def used(db: Database, campaign: CampaignId, *shares: float | None) -> None:
    """Each engine holds so much of its KV cache; None: it does not tell."""
    urls = (await campaigns.get(db, campaign)).config.policy.engines
    for number, share in enumerate(shares):
        name = f"gpu{number}"
        await engines.remove(db, campaign, name)
        await engines.add(db, campaign, (), name, f"http://e:{number + 1}", "someone")
        look = EngineLook(version="0", kv_used=share)
        await engines.saw(db, campaign, name, f"http://e:{number + 1}", look)
    for url in urls:
        await engines.set_draining(db, campaign, urls, url, True)


async def begun(db: Database, name: str) -> CampaignId:
    """A campaign over one task, with policy version 0."""
    await tasks.put_tasks(db, [task(0)])
    over = TasksConfig(source="made-up")
    await campaigns.create(db, config(name).model_copy(update={"tasks": over}))
    await policies.put_first_policy(db, CampaignId(name), "/models/v0", "/checkpoints/v0")
    return CampaignId(name)


async def started(db: Database, campaign: CampaignId) -> list[int]:
    asked = AdmitInput(
        campaign=campaign, policy_version=0, num_steps=4, groups_per_step=2, max_staleness=1
    )
    return (await CampaignActivities(db, FactCache(db)).admit_groups(asked)).running


async def test_no_group_is_added_while_all_caches_are_full(db: Database) -> None:
    campaign = await begun(db, "first")
    await used(db, campaign, KV_FULL, KV_FULL)
    assert await started(db, campaign), "with none in flight there is no end that would ask again"

    other = await begun(db, "second")
    await add_group(db, 0, campaign=other)
    await used(db, other, KV_FULL, KV_FULL)
    assert await started(db, other) == [0]
    await used(db, other, KV_FULL, KV_FULL - 0.01)
    assert len(await started(db, other)) > 1


@pytest.mark.parametrize(
    ("shares", "is_full"),
    [((), False), ((0.95,), True), ((0.95, None), False), ((0.95, 0.2), False), ((None,), False)],
)
async def test_engines_that_tell_no_cache_may_have_room(
    db: Database, shares: tuple[float | None, ...], is_full: bool
) -> None:
    campaign = await begin_campaign(db)
    await used(db, campaign, *shares)
    urls = (await campaigns.get(db, campaign)).config.policy.engines
    assert engines.are_full(await engines.members(db, campaign, urls)) is is_full
