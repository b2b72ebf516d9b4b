"""The fleet of a campaign in the store: who is a member, who asks it, whose a name is."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update

from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.nodes.engines import EngineLook
from infra.db.runs import campaigns
from infra.db.tables.engine_rows import EngineRow
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import EngineOrigin, EngineStatus
from migrations import upgrade

CAMPAIGN = CampaignId("fleet")
URLS = ("http://a:1", "http://b:1")
SEEN = EngineLook(version="3-ab", model="/m", vocab_size=100, num_running=2, num_waiting=1)
GONE = EngineLook(fault="no answer")


@pytest.fixture
async def db(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    # So long that no machine stands still for it: time passes by `ages`.
    monkeypatch.setattr(engines, "LOOK_S", 600.0)
    monkeypatch.setattr(engines, "LOST_AFTER_S", 600.0)
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=8) as database:
        await campaigns.create(
            database, CampaignConfig(name=CAMPAIGN, policy=PolicyConfig(model="/m"))
        )
        yield database


async def names(db: Database, urls: tuple[str, ...] = URLS) -> list[str]:
    return [member.name for member in await engines.members(db, CAMPAIGN, urls)]


async def ages(db: Database, name: str, by_s: float) -> None:
    """As if it had been seen and asked `by_s` earlier."""
    async with db.transaction() as connection:
        await connection.execute(
            update(EngineRow)
            .where(EngineRow.name == name)
            .values(
                seen_at=EngineRow.seen_at - engines.timedelta(seconds=by_s),
                looked_at=EngineRow.looked_at - engines.timedelta(seconds=by_s),
            )
        )


async def test_each_member_is_asked_by_one_process_at_a_time(db: Database) -> None:
    claims = await asyncio.gather(*(engines.claim(db, CAMPAIGN, URLS) for _ in range(8)))
    asked = [member.name for _, mine in claims for member in mine]
    assert sorted(asked) == sorted(URLS)
    _, again = await engines.claim(db, CAMPAIGN, URLS)
    assert again == []
    await ages(db, URLS[0], engines.LOOK_S + 1)
    _, again = await engines.claim(db, CAMPAIGN, URLS)
    assert [member.name for member in again] == [URLS[0]]


async def test_what_was_seen_is_what_all_see(db: Database) -> None:
    await engines.claim(db, CAMPAIGN, URLS)
    await engines.saw(db, CAMPAIGN, URLS[0], URLS[0], SEEN)
    await engines.saw(db, CAMPAIGN, URLS[1], URLS[1], GONE)
    first, second = await engines.members(db, CAMPAIGN, URLS)
    assert (first.status, first.load, first.version) == (EngineStatus.UP, 3, "3-ab")
    assert (second.status, second.fault) == (EngineStatus.LOST, "no answer")
    # It answers no more: lost after a while, and what it last told stays.
    await engines.saw(db, CAMPAIGN, URLS[0], URLS[0], GONE)
    assert (await engines.members(db, CAMPAIGN, URLS))[0].status is EngineStatus.UP
    await ages(db, URLS[0], engines.LOST_AFTER_S + 1)
    first = (await engines.members(db, CAMPAIGN, URLS))[0]
    assert (first.status, first.version) == (EngineStatus.LOST, "3-ab")
    # An engine that moved is not taken for the one at its old address.
    await engines.saw(db, CAMPAIGN, URLS[0], "http://old:1", SEEN)
    assert (await engines.members(db, CAMPAIGN, URLS))[0].status is EngineStatus.LOST


async def test_listed_engines_follow_the_campaigns_field_and_others_stay(db: Database) -> None:
    await engines.claim(db, CAMPAIGN, URLS)
    await engines.add(db, CAMPAIGN, URLS, "mine", "http://c:1", "someone")
    assert await names(db) == [*URLS, "mine"]
    changed = ("http://d:1",)
    await engines.claim(db, CAMPAIGN, changed)
    assert await names(db, changed) == ["http://d:1", "mine"]
    assert await names(db, ()) == ["mine"]


async def test_an_engine_that_comes_back_under_another_address_is_itself(db: Database) -> None:
    first = await engines.register(db, CAMPAIGN, "gpu1", "http://c:1", SEEN, "someone")
    await engines.set_draining(db, CAMPAIGN, (), "gpu1", True)
    assert await engines.report(db, CAMPAIGN, "gpu1", first, SEEN)
    with pytest.raises(UsageError, match="gpu1 already, at http://c:1"):
        await engines.register(db, CAMPAIGN, "gpu1", "http://c:2", SEEN, "someone")
    await ages(db, "gpu1", engines.LOST_AFTER_S + 1)
    second = await engines.register(db, CAMPAIGN, "gpu1", "http://c:2", SEEN, "someone")
    [member] = await engines.members(db, CAMPAIGN, ())
    assert (member.url, member.origin) == ("http://c:2", EngineOrigin.REGISTERED)
    assert member.draining, "what a person asked of it outlives its process"
    # The process before, which stood still meanwhile, has lost the name.
    assert not await engines.report(db, CAMPAIGN, "gpu1", first, GONE)
    await engines.leave(db, CAMPAIGN, "gpu1", first)
    assert await engines.report(db, CAMPAIGN, "gpu1", second, SEEN)
    await engines.leave(db, CAMPAIGN, "gpu1", second)
    assert await names(db, ()) == []


async def test_two_of_one_name_that_join_at_once(db: Database) -> None:
    joins = await asyncio.gather(
        *(
            engines.register(db, CAMPAIGN, "gpu1", f"http://c:{port}", SEEN, "someone")
            for port in range(6)
        ),
        return_exceptions=True,
    )
    assert [isinstance(join, str) for join in joins].count(True) == 1
    refused = [join for join in joins if not isinstance(join, str)]
    assert all(isinstance(join, UsageError) for join in refused)


async def test_an_address_is_one_engines(db: Database) -> None:
    with pytest.raises(UsageError, match="the address of engine http://a:1"):
        await engines.add(db, CAMPAIGN, URLS, "other", URLS[0], "someone")
    await engines.add(db, CAMPAIGN, URLS, "mine", "http://c:1", "someone")
    with pytest.raises(UsageError, match="an engine mine already"):
        await engines.add(db, CAMPAIGN, URLS, "mine", "http://c:2", "someone")
    await engines.register(db, CAMPAIGN, "gpu1", "http://c:3", SEEN, "someone")
    with pytest.raises(UsageError, match="address of engine gpu1"):
        await engines.register(db, CAMPAIGN, "gpu2", "http://c:3", SEEN, "someone")
    # The one that was there is gone: what listens there now is another engine.
    await ages(db, "gpu1", engines.LOST_AFTER_S + 1)
    await engines.register(db, CAMPAIGN, "gpu2", "http://c:3", SEEN, "someone")
    assert await names(db, ()) == ["gpu2", "mine"]


async def test_one_that_is_listed_and_registers_is_one_member(db: Database) -> None:
    await engines.claim(db, CAMPAIGN, URLS)
    await engines.register(db, CAMPAIGN, "gpu1", URLS[0], SEEN, "someone")
    assert await names(db) == ["gpu1", URLS[1]] or await names(db) == sorted(["gpu1", URLS[1]])


async def test_draining_and_removing(db: Database) -> None:
    await engines.set_draining(db, CAMPAIGN, URLS, URLS[0], True)
    first, second = await engines.members(db, CAMPAIGN, URLS)
    assert (first.status, second.status) == (EngineStatus.DRAINED, EngineStatus.JOINING)
    await engines.saw(db, CAMPAIGN, URLS[0], URLS[0], SEEN)
    assert (await engines.members(db, CAMPAIGN, URLS))[0].status is EngineStatus.DRAINING
    await engines.set_draining(db, CAMPAIGN, URLS, URLS[0] + "/", False)
    assert (await engines.members(db, CAMPAIGN, URLS))[0].status is EngineStatus.UP
    with pytest.raises(UsageError, match="no engine gpu7"):
        await engines.set_draining(db, CAMPAIGN, URLS, "gpu7", True)
    life = await engines.register(db, CAMPAIGN, "gpu1", "http://c:1", SEEN, "someone")
    await engines.remove(db, CAMPAIGN, "gpu1")
    assert not await engines.report(db, CAMPAIGN, "gpu1", life, SEEN)
