"""Upgrades of a database that processes work on: what they break, whom they wait for."""

import asyncio
from pathlib import Path

import pytest
import schema_changes
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import text

from infra.db.connect import Connected, PoolRole, open_database
from infra.db.database import Database
from mainspring.config.settings import Settings
from mainspring.errors import DatabaseError
from migrations import upgrade

KNOWN = {"0034": False, "0035": False, "0036": True, "0037": False, "0038": True}
"""Migrations before there was a mark, and whether programs before them fail at what they change."""


def test_numbers_of_migrations_are_ordered_as_text() -> None:
    scripts = ScriptDirectory.from_config(upgrade.alembic_config())
    numbers = [script.revision for script in scripts.walk_revisions()][::-1]
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]


async def test_a_migration_that_breaks_older_programs_is_marked(fresh_database: str) -> None:
    scripts = ScriptDirectory.from_config(upgrade.alembic_config())
    numbers = [s.revision for s in scripts.walk_revisions() if s.revision >= min(KNOWN)][::-1]
    async with Database.open(fresh_database) as db:
        await _migrate(db, "0033")
        before = await _catalog(db)
        for number in numbers:
            await _migrate(db, number)
            after = await _catalog(db)
            found = schema_changes.breaking(before, after)
            marked = getattr(scripts.get_revision(number).module, "breaks_older", False)
            expected = KNOWN.get(number, marked)
            assert bool(found) == expected, (
                f"migration {number}: {found or 'it only adds'}; let `breaks_older` at its top "
                "tell so, or let it only add"
            )
            before = after


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ALTER TABLE nodes ADD COLUMN extra text NOT NULL", "nodes.extra needs a value"),
        ("ALTER TABLE campaigns DROP COLUMN parent", "campaigns.parent is gone"),
        ("ALTER TABLE calls ALTER COLUMN engine DROP DEFAULT", "calls.engine has lost its default"),
        ("ALTER TABLE campaigns ALTER COLUMN parent SET NOT NULL", "parent must have a value"),
        ("ALTER TABLE calls ALTER COLUMN engine TYPE varchar", "calls.engine was text, is varchar"),
        ("CREATE UNIQUE INDEX one ON campaigns (config)", "rule of campaigns is new"),
        ("ALTER TABLE calls ADD COLUMN extra text NOT NULL DEFAULT ''", ""),
        ("CREATE INDEX one ON campaigns (config)", ""),
        ("CREATE TABLE extra (id text PRIMARY KEY)", ""),
    ],
)
async def test_changes_that_break_older_programs_are_seen(
    store_url: str, db: Database, statement: str, told: str
) -> None:
    async with db.transaction() as connection:
        before = await connection.run_sync(schema_changes.read)
        await connection.execute(text(statement))
        found = schema_changes.breaking(before, await connection.run_sync(schema_changes.read))
        await connection.rollback()
    assert (told in " ".join(found)) if told else found == []


async def test_the_mark_follows_the_schema(fresh_database: str) -> None:
    async with Database.open(fresh_database) as db:
        await _migrate(db, "0038")
        schema = await db.schema()
        assert schema is not None and schema.oldest_accepted is None and schema.accepts("0038")
        await asyncio.to_thread(upgrade.upgrade, fresh_database)
        schema = await db.schema()
    assert schema is not None and schema.oldest_accepted == upgrade.oldest()
    assert schema.accepts("0038") == (upgrade.oldest() <= "0038")
    assert not schema.accepts("0037")


async def test_processes_that_an_upgrade_would_break_are_named_and_the_schema_stays(
    fresh_database: str,
) -> None:
    async with Database.open(fresh_database) as db:
        await _migrate(db, "0037")
        label = "mainspring rollout pool=8 77@old-host"
        async with Database.open(fresh_database, label=label) as old:
            await old.revision()
            with pytest.raises(DatabaseError, match=r"1 processes.*rollout 77@old-host") as refused:
                await asyncio.to_thread(upgrade.upgrade, fresh_database)
            assert await db.revision() == "0037"
        assert "stop these processes" in refused.value.remedy
        await asyncio.to_thread(upgrade.upgrade, fresh_database)
        await db.check()


async def test_a_process_that_the_upgrade_does_not_break_works_through_it(
    fresh_database: str,
) -> None:
    async with Database.open(fresh_database) as db:
        await _migrate(db, "0038")
        label = "mainspring rollout pool=8 77@old-host"
        async with Database.open(fresh_database, label=label) as old, old.statement() as connection:
            asked = text("SELECT id FROM store")
            ident = await connection.scalar(asked)
            await asyncio.to_thread(upgrade.upgrade, fresh_database)
            assert await connection.scalar(asked) == ident


async def test_an_upgrade_waits_for_a_table_without_holding_up_the_others(
    fresh_database: str,
) -> None:
    told: list[str] = []
    async with Database.open(fresh_database) as db:
        await _migrate(db, "0038")
        async with db.transaction() as reader:
            await reader.execute(text("SELECT id FROM store"))
            await asyncio.sleep(1.1)
            upgrading = asyncio.create_task(
                asyncio.to_thread(upgrade.upgrade, fresh_database, waiting=told.append)
            )
            while not told:
                # Behind an upgrade that waited for long, each of these would wait as well.
                async with asyncio.timeout(upgrade.LOCK_TIMEOUT_S + 5), db.statement() as other:
                    await other.execute(text("SELECT id FROM store"))
            pid = await reader.scalar(text("SELECT pg_backend_pid()"))
        await upgrading
        await db.check()
    assert f"PID {pid}" in told[0] and "trying again" in told[0]


async def test_an_upgrade_that_gets_no_table_names_who_has_it(fresh_database: str) -> None:
    async with Database.open(fresh_database) as db:
        await _migrate(db, "0038")
        async with db.transaction() as reader:
            await reader.execute(text("SELECT id FROM store"))
            await asyncio.sleep(1.1)
            with pytest.raises(DatabaseError, match=r"in use by mainspring \(PID \d+\)") as refused:
                await asyncio.to_thread(upgrade.upgrade, fresh_database, try_for_s=0.0)
        assert "nothing was changed" in refused.value.remedy
        assert await db.revision() == "0038"


async def test_labels_of_both_versions_are_read(fresh_database: str, tmp_path: Path) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    settings = Settings(database_url=fresh_database)
    label = "mainspring node pool=2 12@a-host"
    async with (
        open_database(settings, PoolRole.TRAINER),
        Database.open(fresh_database, label=label) as old,
    ):
        await old.revision()
        _, processes = await asyncio.to_thread(upgrade.look, fresh_database)
    schemas = {process.role: process.schema for process in processes}
    assert schemas == {"node": None, "trainer": upgrade.head()}
    assert Connected("node", 12, "a-host", None) in processes


async def _migrate(db: Database, revision: str) -> None:
    async with db.transaction() as connection:
        await connection.run_sync(
            lambda sync: command.upgrade(upgrade.alembic_config(sync), revision)
        )


async def _catalog(db: Database) -> schema_changes.Catalog:
    async with db.transaction() as connection:
        return await connection.run_sync(schema_changes.read)
