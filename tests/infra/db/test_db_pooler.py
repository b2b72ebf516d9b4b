"""PgBouncer in front of Postgres: nothing is lost in either mode, and commits are durable.
What needs a session of its own is refused at the start where there is none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from other_servers import needs_pgbouncer, pgbouncer
from sqlalchemy import text
from store_records import CAMPAIGN, begin_campaign

from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.store import namespace
from mainspring.config.settings import Settings
from mainspring.errors import DatabaseError
from migrations import upgrade

pytestmark = needs_pgbouncer
NUM_AT_ONCE = 40


@pytest.fixture
async def migrated(fresh_database: str) -> str:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    return fresh_database


@pytest.fixture(params=["transaction", "session"])
async def pooled(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: str
) -> AsyncIterator[str]:
    async with pgbouncer(tmp_path, migrated, request.param) as url:
        yield url


async def test_nothing_is_lost_and_all_is_durable(pooled: str, migrated: str) -> None:
    name = migrated.rpartition("/")[2]
    async with Database.open(migrated) as db, db.transaction() as connection:
        await connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    async with Database.open(pooled, pool_size=3) as db:
        await db.check()
        assert db.is_pooled
        await begin_campaign(db)

        async def ask(number: int) -> tuple[str, int]:
            async with db.statement() as connection:
                shown = await connection.scalar(text("SHOW synchronous_commit"))
            async with db.transaction() as connection:
                assert await connection.scalar(text("SHOW synchronous_commit")) == "on"
                found = await connection.scalar(text(f"SELECT {number} + :n"), {"n": 1})
            assert (await campaigns.get(db, CAMPAIGN)).id == CAMPAIGN
            return shown, found

        told = await asyncio.gather(*(ask(number) for number in range(NUM_AT_ONCE)))
    assert told == [("on", number + 1) for number in range(NUM_AT_ONCE)]


async def test_migrations_go_through_it(tmp_path: Path, fresh_database: str) -> None:
    async with pgbouncer(tmp_path, fresh_database, "transaction") as url:
        await asyncio.to_thread(upgrade.upgrade, url)
        async with Database.open(url) as db:
            await db.check()


async def test_a_snapshot_sees_one_moment(pooled: str) -> None:
    async with Database.open(pooled) as db:
        await begin_campaign(db)
        async with db.snapshot() as connection:
            before = await connection.scalar(text("SELECT status FROM campaigns"))
            async with db.statement() as other:
                await other.execute(text("UPDATE campaigns SET status = 'running'"))
            assert await connection.scalar(text("SELECT status FROM campaigns")) == before
            with pytest.raises(Exception, match="read-only"):
                await connection.execute(text("UPDATE campaigns SET status = 'running'"))


async def test_transaction_mode_needs_a_direct_url(tmp_path: Path, migrated: str) -> None:
    async with pgbouncer(tmp_path, migrated, "transaction") as url:
        with pytest.raises(DatabaseError, match="transaction mode, which loses LISTEN") as refused:
            async with open_database(Settings(database_url=url)):
                pass
        assert "MAINSPRING_DATABASE_DIRECT_URL" in refused.value.remedy
        async with open_database(Settings(database_url=url, database_direct_url=migrated)) as db:
            assert await namespace(db) is None
        for wrong in (url, migrated.rpartition("/")[0] + "/postgres"):
            with pytest.raises(DatabaseError, match=r"DIRECT_URL leads to.*does not hear"):
                async with open_database(Settings(database_url=url, database_direct_url=wrong)):
                    pass


async def test_session_mode_needs_none(tmp_path: Path, migrated: str) -> None:
    async with (
        pgbouncer(tmp_path, migrated, "session") as url,
        open_database(Settings(database_url=url)) as db,
    ):
        assert db.is_pooled


async def test_what_the_pooler_refuses_is_named(tmp_path: Path, migrated: str) -> None:
    async with pgbouncer(tmp_path, migrated, "statement") as url, Database.open(url) as db:
        with pytest.raises(DatabaseError, match="statement mode") as refused:
            await db.check()
        assert "pool_mode" in refused.value.remedy
    async with pgbouncer(tmp_path, migrated, "transaction") as url:
        asked = f"{url}?options=-c%20statement_timeout%3D9s"
        async with Database.open(asked) as db:
            with pytest.raises(DatabaseError, match="refuses the parameter options"):
                await db.check()


async def test_a_frozen_transaction_loses_its_locks(pooled: str) -> None:
    """The server's bound, shortened; a holder that wakes up is refused."""
    async with Database.open(pooled) as db:
        with pytest.raises(DatabaseError, match="cannot be used"):
            async with db.transaction() as frozen:
                assert await frozen.scalar(text(_BOUND)) == "45s"
                await frozen.execute(text(f"{_SHORT}"))
                await frozen.execute(text("SELECT pg_advisory_xact_lock(7)"))
                async with db.transaction() as other:
                    await other.execute(text("SELECT pg_advisory_xact_lock(7)"))
                await frozen.execute(text("SELECT 1"))


_BOUND = "SHOW idle_in_transaction_session_timeout"
_SHORT = "SET LOCAL idle_in_transaction_session_timeout = '1s'"
