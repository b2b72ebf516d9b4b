"""All rows of a campaign: read and written back they are the same; removed, only they are gone."""

import asyncio

import pytest
from sqlalchemy import select, text, update

from infra.db.database import Database
from infra.db.runs import campaign_rows, campaigns, removal
from infra.db.tables.models import Base, CampaignRow
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, Incomplete
from tests.infra.db.store_records import CAMPAIGN, add_ready_group, begin_campaign, config

OTHER = CampaignId("second")


async def digests(db: Database) -> dict[str, str | None]:
    """A digest of the rows of each table, whatever their order."""
    found: dict[str, str | None] = {}
    async with db.transaction() as connection:
        for table in Base.metadata.sorted_tables:
            rows = f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM \"{table.name}\" t"
            found[table.name] = await connection.scalar(text(rows))
    return found


async def two_campaigns(db: Database) -> None:
    for name in (CAMPAIGN, OTHER):
        await begin_campaign(db, name)
        for index in range(3):
            await add_ready_group(db, index, name)
        await campaigns.set_status(db, name, CampaignStatus.CANCELLED)


def test_every_table_is_of_campaigns_or_is_shared() -> None:
    known = {CampaignRow.__tablename__, "rollouts", *campaign_rows.SHARED}
    known |= {each.name for each in (*campaign_rows.of_rollouts(), *campaign_rows.of_campaign())}
    assert known == set(Base.metadata.tables)
    for table in campaign_rows.of_campaign():
        assert "campaign_id" in table.c, table.name


async def test_rows_are_removed_and_written_back(db: Database) -> None:
    await two_campaigns(db)
    before = await digests(db)
    kept = {}
    async with db.snapshot() as connection:
        for table in campaign_rows.tables():
            kept[table.name] = [
                dict(zip(table.columns, row, strict=True))
                async for rows in campaign_rows.read(connection, table, CAMPAIGN)
                for row in rows
            ]
    assert len(kept["rollouts"]) == 6 and len(kept["calls"]) == 12
    await removal.remove(db, CAMPAIGN, await removal.mark(db, CAMPAIGN))
    assert await campaigns.find(db, CAMPAIGN) is None
    assert (await digests(db)) != before
    async with db.transaction() as connection:
        left = list(
            await connection.scalars(select(Base.metadata.tables["rollouts"].c.campaign_id))
        )
    assert set(left) == {OTHER} and len(left) == 6
    async with db.transaction() as connection:
        for table in campaign_rows.tables():
            await campaign_rows.write(connection, table, kept[table.name])
            await campaign_rows.write(connection, table, kept[table.name])
    assert await digests(db) == before


async def test_two_removals_share_the_work(db: Database) -> None:
    await two_campaigns(db)
    uid = await removal.mark(db, CAMPAIGN)
    await asyncio.gather(*(removal.remove(db, CAMPAIGN, uid) for _ in range(3)))
    assert await campaigns.find(db, CAMPAIGN) is None
    assert await campaigns.find(db, OTHER) is not None


async def test_a_removal_that_comes_late_leaves_a_new_campaign_of_the_name(db: Database) -> None:
    await two_campaigns(db)
    uid = await removal.mark(db, CAMPAIGN)
    await removal.remove(db, CAMPAIGN, uid)
    await begin_campaign(db, CAMPAIGN)
    await add_ready_group(db, 0, CAMPAIGN)
    await removal.remove(db, CAMPAIGN, uid)
    assert await campaigns.find(db, CAMPAIGN) is not None


async def test_what_is_being_deleted_is_neither_made_nor_resumed(db: Database) -> None:
    await two_campaigns(db)
    await removal.mark(db, CAMPAIGN)
    with pytest.raises(UsageError, match="campaign first is being deleted"):
        await campaigns.resume(db, CAMPAIGN)
    with pytest.raises(UsageError, match="campaign first is being deleted"):
        await campaigns.create(db, config(CAMPAIGN))


async def test_a_running_campaign_is_not_marked(db: Database) -> None:
    await begin_campaign(db)
    await campaigns.set_status(db, CAMPAIGN, CampaignStatus.RUNNING)
    with pytest.raises(UsageError, match="first is running"):
        await removal.mark(db, CAMPAIGN)


async def test_a_campaign_that_is_restored_is_not_used(db: Database) -> None:
    await two_campaigns(db)
    async with db.transaction() as connection:
        await connection.execute(update(CampaignRow).values(incomplete=Incomplete.RESTORING))
    with pytest.raises(UsageError, match="is being restored"):
        await campaigns.resume(db, CAMPAIGN)
