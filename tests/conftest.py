"""One embedded stack for each test process: real Postgres, real Temporal, in its own folder.

Beside it a store of the tests' own: `db` is empty when a test begins.
"""

import asyncio
import contextlib
import os
import tomllib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import settings
from sqlalchemy import delete
from temporalio.service import RPCError

from cli.operations.machine.embedded_stack import StackInfo, temporary
from infra.db.database import Database
from infra.db.tables.models import Base
from infra.db.tables.store_rows import StoreRow
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from migrations import upgrade

for name in ("DATABASE_URL", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "HOME"):
    os.environ.pop(f"MAINSPRING_{name}", None)
# As a rank on a CPU has it (trainer/process/driver.py): Megatron's import then makes no compiler
# ready.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
# Commands of tests need no viewer beside them: each costs a second. tests/view asks for one.
os.environ["MAINSPRING_VIEW"] = "false"

LONGEST_FIRST = ("test_train_command.py", "test_campaign_resumes.py")
"""Files of minutes that would run alone at the end, because the alphabet puts them last."""


settings.register_profile("commit", max_examples=25)
"""Of `make test`. `make test-all` tries the 100 that are usual."""

SLOW = tomllib.loads((Path(__file__).parent / "slow.toml").read_text())


def is_slow(nodeid: str) -> bool:
    """Whether `make test` leaves a test to `make test-all` (slow.toml)."""
    file, _, name = nodeid.partition("::")
    if file in SLOW["some"]:
        return not any(part in name for part in SLOW["some"][file])
    return file in SLOW["whole"] or any(part in name for part in SLOW["without"].get(file, ()))


FIXTURES = pytest.StashKey[set[str]]()
"""Names of all fixtures that a module's tests use."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST_FIRST)
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
        module = item.getparent(pytest.Module)
        if module is not None and isinstance(item, pytest.Function):
            module.stash.setdefault(FIXTURES, set()).update(item.fixturenames)


class Standing:
    """The cluster that stays up from one module of tests to the next. There is at most one: all
    clusters of a test process poll the same queues."""

    def __init__(self) -> None:
        self._kind = ""
        self._cluster: Any = None
        self._open = AsyncExitStack()

    async def get(self, kind: str, make: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        """The cluster of this kind; another kind is shut down first."""
        if self._kind != kind:
            await self.shut_down()
            self._cluster = await self._open.enter_async_context(make())
            self._kind = kind
        return self._cluster

    async def shut_down(self) -> None:
        self._kind = ""
        await self._open.aclose()


KINDS_OF_CLUSTER = {"workers", "program_workers", "ungated"}
"""Fixtures of tests/workflows that give the standing cluster."""


@pytest.fixture(scope="session")
def standing() -> Standing:
    return Standing()


@pytest.fixture(scope="session")
async def stack(standing: Standing) -> AsyncIterator[StackInfo]:
    """Up once; its database is migrated. Tests share it and name their things apart."""
    async with temporary("mainspring-tests-") as info:
        yield info
        await standing.shut_down()


@pytest.fixture(scope="module", autouse=True)
async def no_other_cluster(
    request: pytest.FixtureRequest, standing: Standing
) -> AsyncIterator[None]:
    """A module with workers of its own shares the queues with no other cluster, and leaves no
    workflow that the workers of the next module would play."""
    used = request.node.stash[FIXTURES]
    if "stack" in used and not used & KINDS_OF_CLUSTER:
        await standing.shut_down()
    yield
    if "stack" in used:
        await end_workflows(request.getfixturevalue("stack"))


async def end_workflows(stack: StackInfo) -> None:
    client = await connect(load_settings(stack.home))
    async for left in client.list_workflows("ExecutionStatus = 'Running'"):
        with contextlib.suppress(RPCError):  # it ended by itself, or is no longer known
            await client.get_workflow_handle(left.id, run_id=left.run_id).terminate()


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
