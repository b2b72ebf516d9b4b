"""Opening, checking, losing and regaining a database; what the errors say."""

import asyncio

import pytest
from sqlalchemy import AsyncAdaptedQueuePool, make_url, text
from store_records import CAMPAIGN, begin_campaign, config

from infra.db.database import NEEDED_REVISION, Database
from infra.db.runs import campaigns
from mainspring.errors import DatabaseError
from migrations import upgrade


async def test_check_names_both_migrations_and_the_remedy(fresh_database: str) -> None:
    async with Database.open(fresh_database) as db:
        with pytest.raises(DatabaseError, match="holds no Mainspring tables") as empty:
            await db.check()
        assert "mainspring db upgrade" in empty.value.remedy
        with pytest.raises(DatabaseError, match="lacks tables"):
            await campaigns.list_all(db)
        await asyncio.to_thread(upgrade.upgrade, fresh_database)
        await db.check()


@pytest.mark.parametrize(
    ("revision", "oldest", "accepts"),
    [
        ("9999", None, False),
        ("9999", "0001", True),
        ("9999", NEEDED_REVISION, True),
        ("9999", "9998", False),
        ("0001", None, False),
        ("0001", "0001", False),
    ],
)
async def test_a_schema_tells_which_programs_it_accepts(
    fresh_database: str, revision: str, oldest: str | None, accepts: bool
) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database) as db:
        async with db.transaction() as connection:
            marks = {"revision": revision, "oldest": oldest}
            for statement in (
                "UPDATE alembic_version SET version_num = :revision",
                "UPDATE store SET oldest_accepted = :oldest",
            ):
                await connection.execute(text(statement), marks)
        if accepts:
            await db.check()
            return
        with pytest.raises(DatabaseError, match=f"{revision}.*needs {upgrade.head()}") as refused:
            await db.check()
        is_newer = revision > NEEDED_REVISION
        assert ("newer version" if is_newer else "mainspring db upgrade") in refused.value.remedy


async def test_work_that_takes_all_columns_refuses_a_newer_schema(fresh_database: str) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database) as db:
        await db.check_own("an archive")
        async with db.transaction() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(DatabaseError, match=r"an archive takes all columns.*9999"):
            await db.check_own("an archive")


async def test_unreachable_names_the_place_and_not_the_password(
    store_url: str, unused_tcp_port: int
) -> None:
    url = f"postgresql://me:hunter2@127.0.0.1:{unused_tcp_port}/runs"
    async with Database.open(url) as db:
        with pytest.raises(DatabaseError) as refused:
            await db.check()
    assert f"127.0.0.1:{unused_tcp_port}/runs" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    missing = make_url(store_url).set(database="nowhere")
    async with Database.open(missing.render_as_string(hide_password=False)) as db:
        with pytest.raises(DatabaseError, match="/nowhere cannot be used"):
            await db.check()


async def test_upgrade_of_an_unreachable_database(unused_tcp_port: int) -> None:
    url = f"postgresql://me:hunter2@127.0.0.1:{unused_tcp_port}/runs"
    with pytest.raises(DatabaseError, match="cannot be used"):
        await asyncio.to_thread(upgrade.upgrade, url)


async def test_disk_full_is_told_apart(db: Database) -> None:
    # The server's own error with the code that a full disk gives.
    full = "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
    with pytest.raises(DatabaseError, match="disk is full") as error:
        async with db.transaction() as connection:
            await connection.execute(text(full))
    assert db.name in error.value.message
    assert "free space" in error.value.remedy


async def test_connections_killed_while_idle_are_replaced_unnoticed(db: Database) -> None:
    await begin_campaign(db)
    await asyncio.gather(*(campaigns.list_all(db) for _ in range(6)))
    await _kill_the_others(db)
    await asyncio.sleep(0.05)
    found = await asyncio.gather(*(campaigns.get(db, CAMPAIGN) for _ in range(6)))
    assert {record.id for record in found} == {CAMPAIGN}


async def test_a_connection_lost_in_a_transaction_leaves_nothing_behind(
    store_url: str, db: Database
) -> None:
    async with Database.open(store_url) as other:
        with pytest.raises(DatabaseError):
            async with db.transaction() as connection:
                await connection.execute(
                    text("INSERT INTO campaigns (id, config, status) VALUES ('x', '{}', 'created')")
                )
                await _kill_the_others(other)
                await connection.execute(text("SELECT 1"))
    assert await campaigns.list_all(db) == []
    assert await campaigns.create(db, config())


async def test_commits_are_durable_whatever_the_server_prefers(
    fresh_database: str,
) -> None:
    name = make_url(fresh_database).database
    async with Database.open(fresh_database) as old, old.transaction() as connection:
        await connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    async with Database.open(fresh_database) as new, new.transaction() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "on"


async def test_a_direct_connection_prepares_a_statement_once(fresh_database: str) -> None:
    async with Database.open(fresh_database, pool_size=1) as db:
        for number in range(3):
            async with db.statement() as connection:
                assert await connection.scalar(text("SELECT 40 + :n"), {"n": number}) == 40 + number
        assert not db.is_pooled
        async with db.statement() as connection:
            query = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT 40 %'"
            assert await connection.scalar(text(query)) == 1


async def test_waiting_for_a_connection_of_the_pool_is_no_fault(fresh_database: str) -> None:
    """A slow machine with hundreds of rollouts makes callers wait for longer than SQLAlchemy's
    usual 30 seconds."""
    async with Database.open(fresh_database, pool_size=1) as db:
        async with db.transaction() as held:
            pool = held.sync_connection and held.sync_connection.engine.pool
            assert isinstance(pool, AsyncAdaptedQueuePool) and pool.timeout() > 600
            waiting = asyncio.create_task(_select_one(db))
            await asyncio.sleep(1)
            assert not waiting.done()
        assert await waiting == 1


async def _select_one(db: Database) -> int:
    async with db.transaction() as connection:
        return await connection.scalar(text("SELECT 1"))


async def _kill_the_others(db: Database) -> None:
    async with db.transaction() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
