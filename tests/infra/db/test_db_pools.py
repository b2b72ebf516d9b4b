"""Connections of a process: as many as its role needs, named in the server's list, and counted."""

import asyncio

import pytest
from sqlalchemy import text

from infra.db.connect import PoolRole, connections, open_database
from infra.db.database import NEEDED_REVISION
from mainspring.config.settings import Settings, configured_settings
from mainspring.errors import ConfigError
from migrations import upgrade


def test_a_hundred_processes_stay_within_three_hundred_connections() -> None:
    fleet = {
        PoolRole.NODE: 90,
        PoolRole.ROLLOUT: 5,
        PoolRole.GATEWAY: 3,
        PoolRole.TRAINER: 2,
    }
    listening = fleet[PoolRole.GATEWAY]
    assert sum(fleet.values()) == 100
    assert sum(role.pool_size * number for role, number in fleet.items()) + listening == 239


async def test_what_processes_may_open_is_counted(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    settings = Settings(database_url=fresh_database)
    async with open_database(settings) as db:
        before = await connections(db)
        async with (
            open_database(settings, PoolRole.NODE) as node,
            open_database(settings, PoolRole.GATEWAY),
            open_database(settings.model_copy(update={"database_pool": 20}), PoolRole.ROLLOUT),
        ):
            found = await connections(db)
            async with node.statement() as connection:
                label = await connection.scalar(text("SHOW application_name"))
    assert found.num_processes - before.num_processes == 3
    assert found.ours - before.ours == PoolRole.NODE.pool_size + PoolRole.GATEWAY.pool_size + 1 + 20
    assert label.startswith(f"mainspring node pool=2 {NEEDED_REVISION} ")
    assert 0 < found.allowed < 300


def test_a_pool_of_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_POOL", "1")
    with pytest.raises(ConfigError, match=r"MAINSPRING_DATABASE_POOL.*greater than or equal to 2"):
        configured_settings()
