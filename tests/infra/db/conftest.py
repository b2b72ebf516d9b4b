import asyncio
from collections.abc import AsyncIterator

import pytest

from infra.db import migrate
from infra.db.database import Database


@pytest.fixture
async def db(fresh_database: str) -> AsyncIterator[Database]:
    """An empty store at the newest migration."""
    await asyncio.to_thread(migrate.upgrade, fresh_database)
    async with Database.open(fresh_database) as database:
        yield database
