"""One embedded stack for each test process: real Postgres, real Temporal, in its own folder.

Beside it a store of the tests' own: `db` is empty when a test begins.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import delete

from cli.operations.embedded_stack import StackInfo, temporary
from infra.db.database import Database
from infra.db.models import Base, StoreRow
from migrations import upgrade

for name in ("DATABASE_URL", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "HOME"):
    os.environ.pop(f"MAINSPRING_{name}", None)
# As a rank on a CPU has it (trainer/driver.py): Megatron's import then makes no compiler ready.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

LONGEST_FIRST = ("test_train_command.py", "test_campaign_resumes.py")
"""Files of minutes that would run alone at the end, because the alphabet puts them last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST_FIRST)


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[StackInfo]:
    """Up once; its database is migrated. Tests share it and name their things apart."""
    async with temporary("mainspring-tests-") as info:
        yield info


@pytest.fixture
async def fresh_database(stack: StackInfo) -> AsyncIterator[str]:
    """The URL of an empty database, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(stack.database_url)
    await admin.execute(f"CREATE DATABASE {name}")
    yield stack.database_url.rpartition("/")[0] + f"/{name}"
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


@pytest.fixture(scope="session")
async def store_url(stack: StackInfo) -> AsyncIterator[str]:
    """A database of these tests alone, at the newest migration."""
    name = f"store_{uuid.uuid4().hex[:12]}"
    url = stack.database_url.rpartition("/")[0] + f"/{name}"
    admin = await asyncpg.connect(stack.database_url)
    await admin.execute(f"CREATE DATABASE {name}")
    await asyncio.to_thread(upgrade.upgrade, url)
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
