"""The migrations make exactly the schema of the models, once, however many upgrade at once."""

import asyncio

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from infra.db.database import NEEDED_REVISION, Database
from infra.db.rollouts import turns
from infra.db.tables.models import Base
from mainspring.errors import DatabaseError
from mainspring.ids import RolloutId
from mainspring.trajectories.tree import branches, check_tree
from migrations import upgrade

CATALOG = {
    "columns": "SELECT table_name, column_name, data_type, is_nullable, column_default "
    "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) "
    "FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes "
    "WHERE schemaname = 'public' ORDER BY 1, 2",
}


async def test_upgraded_database_is_what_the_models_say(fresh_database: str) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database) as db, db.transaction() as connection:
        differences = await connection.run_sync(_autogenerate)
        migrated = await connection.run_sync(_catalog)
        # The same again from the models: Alembic does not compare CHECK constraints.
        await connection.execute(text("DROP SCHEMA public CASCADE"))
        await connection.execute(text("CREATE SCHEMA public"))
        await connection.run_sync(Base.metadata.create_all)
        modelled = await connection.run_sync(_catalog)
    assert differences == []
    assert migrated == modelled


def test_the_needed_migration_is_alembics_newest() -> None:
    assert upgrade.head() == NEEDED_REVISION


async def test_concurrent_upgrades_take_turns(fresh_database: str) -> None:
    assert await asyncio.to_thread(upgrade.current, fresh_database) is None
    await asyncio.gather(*(asyncio.to_thread(upgrade.upgrade, fresh_database) for _ in range(4)))
    assert await asyncio.to_thread(upgrade.current, fresh_database) == upgrade.head()


async def test_a_database_of_a_newer_program_is_refused(fresh_database: str) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database) as db, db.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        await connection.execute(text("UPDATE store SET oldest_accepted = '9998'"))
    with pytest.raises(DatabaseError, match="9999"):
        await asyncio.to_thread(upgrade.upgrade, fresh_database)
    assert await asyncio.to_thread(upgrade.current, fresh_database) == "9999"


async def test_downgrade_leaves_nothing(fresh_database: str) -> None:
    from alembic import command

    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database) as db:
        async with db.transaction() as connection:
            await connection.run_sync(
                lambda sync: command.downgrade(upgrade.alembic_config(sync), "base")
            )
            assert await connection.run_sync(_catalog) != {}
        async with db.transaction() as connection:
            tables = await connection.scalars(
                text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            )
            assert list(tables) == ["alembic_version"]


def _autogenerate(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    return compare_metadata(context, Base.metadata)


def _catalog(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: [tuple(row) for row in connection.execute(text(query)) if row[0] != "alembic_version"]
        for name, query in CATALOG.items()
    }


async def test_turns_stored_before_the_tree_are_one_branch(fresh_database: str) -> None:
    """Rows as 0013 stored them, with two rollouts and the commands of each."""
    from alembic import command

    async with Database.open(fresh_database) as db:
        async with db.transaction() as connection:
            await connection.run_sync(
                lambda sync: command.upgrade(upgrade.alembic_config(sync), "0013")
            )
            for statement in OLD_ROWS:
                await connection.execute(text(statement))
        await asyncio.to_thread(upgrade.upgrade, fresh_database)
        for rollout in ("r0", "r1"):
            calls, executions = await turns.history(db, RolloutId(rollout), 0)
            check_tree(rollout, calls)
            assert [path[-1].number for path in branches(calls)] == [2]
            assert [(each.call, each.index) for each in executions] == [(0, 0), (2, 0)]


OLD_ROWS = (
    "INSERT INTO campaigns (id, config, status) VALUES ('c', '{}', 'running')",
    "INSERT INTO tasks (id, source, split, position, content_hash, spec) "
    "VALUES ('t', 's', 'train', 0, 'h', '{}')",
    "INSERT INTO groups (id, campaign_id, kind, policy_version, size, status, sampling, split) "
    "VALUES ('g', 'c', 'train', 0, 2, 'running', 'sampled', 'train')",
    "INSERT INTO rollouts (id, group_id, campaign_id, task_id, sample_index, temperature, phase) "
    "SELECT 'r' || n, 'g', 'c', 't', n, 1.0, 'running' FROM generate_series(0, 1) AS n",
    "INSERT INTO generations (rollout_id, epoch, turn, prompt_start, prompt_ids, completion_ids, "
    "logprobs, spans, text, finish_reason, latency_s) "
    r"SELECT 'r' || n % 2, 0, n / 2, n / 2 * 2, '\x01000000', '\x02000000', '\x00000000', "
    "'[[0, 0, 1]]', 'x', 'stop', 0.1 FROM generate_series(0, 5) AS n",
    "INSERT INTO executions (rollout_id, epoch, turn, command, state, returncode, output, "
    "truncated, timed_out, wall_s) SELECT 'r' || n % 2, 0, n / 2, 'ls', 'done', 0, '', false, "
    "false, 0.1 FROM generate_series(0, 5) AS n WHERE n / 2 <> 1",
)
