import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import delete

from infra.db import migrate
from infra.db.database import Database
from infra.db.models import Base, StoreRow
from infra.stack.stack import StackInfo


@pytest.fixture(scope="session")
async def store_url(stack: StackInfo) -> AsyncIterator[str]:
    """A database of these tests alone, at the newest migration."""
    name = f"store_{uuid.uuid4().hex[:12]}"
    url = stack.database_url.rpartition("/")[0] + f"/{name}"
    admin = await asyncpg.connect(stack.database_url)
    await admin.execute(f"CREATE DATABASE {name}")
    await asyncio.to_thread(migrate.upgrade, url)
    yield url
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


@pytest.fixture
async def db(store_url: str) -> AsyncIterator[Database]:
    """An empty store. Emptied before and not after, so that a failed test can be looked at."""
    async with Database.open(store_url) as database:
        async with database.transaction() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                if table is not StoreRow.__table__:  # its identity
                    await connection.execute(delete(table))
        yield database
