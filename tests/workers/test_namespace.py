"""The store says in which Temporal namespace its work is; processes of other homes heed it."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from typer.testing import CliRunner, Result

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from infra.db import store
from infra.db.database import Database
from infra.temporal.connection import OWNER_KEY, ForeignNamespace, connect
from infra.temporal.service import OtherNamespace
from mainspring.config.settings import Settings, load_settings
from migrations import upgrade
from tests.polling import pollers, rollout_worker
from tests.waiting import until


@pytest.fixture
async def fresh(fresh_database: str) -> AsyncIterator[Database]:
    """A migrated store that nobody has connected for."""
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    async with Database.open(fresh_database, pool_size=1) as db:
        yield db


@pytest.fixture
async def register(stack: StackInfo) -> Callable[[], Awaitable[str]]:
    """Makes a namespace on the server, as an administrator does; its name."""
    client = await Client.connect(stack.temporal_address)

    async def make() -> str:
        name = f"team-{uuid.uuid4().hex[:8]}"
        retention = Duration()
        retention.FromTimedelta(timedelta(days=1))
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
        )
        await until(lambda: exists(client, name))
        return name

    return make


async def exists(client: Client, name: str) -> bool:
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=name))
    except RPCError:
        return False
    return True


async def test_a_worker_with_a_home_of_its_own_polls_where_the_work_is(
    stack: StackInfo, tmp_path: Path
) -> None:
    """It knows two addresses and nothing else of the home that has the database."""
    addresses = {"DATABASE_URL": stack.database_url, "TEMPORAL_ADDRESS": stack.temporal_address}
    async with rollout_worker(tmp_path, **addresses) as worker:

        async def polls() -> bool:
            return await pollers(stack.temporal_address, worker.pid) != set()

        await until(polls)
        found = await pollers(stack.temporal_address, worker.pid)
    assert found == {stack.temporal_namespace}


async def test_a_worker_that_is_to_use_another_namespace_ends_and_names_both(
    stack: StackInfo, tmp_path: Path
) -> None:
    addresses = {"DATABASE_URL": stack.database_url, "TEMPORAL_ADDRESS": stack.temporal_address}
    async with rollout_worker(tmp_path, **addresses, TEMPORAL_NAMESPACE="default") as worker:
        assert await asyncio.wait_for(worker.wait(), 120) == 3
    said = (tmp_path / "logs" / "worker.log").read_text()
    assert f"is in Temporal namespace {stack.temporal_namespace}, and" in said
    assert "is to use namespace default" in said
    assert f"MAINSPRING_TEMPORAL_NAMESPACE={stack.temporal_namespace}" in said
    assert "Traceback" not in said


async def test_the_first_that_connects_decides_and_a_name_that_is_not_there_is_not_recorded(
    stack: StackInfo, fresh: Database, register: Callable[[], Awaitable[str]]
) -> None:
    mine, other = await register(), await register()
    nothing = Settings(temporal_address=stack.temporal_address)
    with pytest.raises(ForeignNamespace, match="has no namespace team-missing"):
        await connect(nothing.in_namespace("team-missing"), fresh)
    assert await store.namespace(fresh) is None
    await connect(nothing.in_namespace(mine), fresh)
    assert await store.namespace(fresh) == mine
    assert (await connect(nothing, fresh)).namespace == mine
    with pytest.raises(OtherNamespace, match=f"{mine}, and this process is to use .*{other}"):
        await connect(nothing.in_namespace(other), fresh)


async def test_moved_work_is_followed_by_running_workers_and_nobody_elses_is_taken(
    stack: StackInfo,
    fresh: Database,
    fresh_database: str,
    register: Callable[[], Awaitable[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = await register(), await register()
    async with Database.open(stack.database_url) as taken:  # by the store that is to be refused
        await connect(load_settings(stack.home), taken)
    await connect(Settings(temporal_address=stack.temporal_address).in_namespace(before), fresh)
    addresses = {"DATABASE_URL": fresh_database, "TEMPORAL_ADDRESS": stack.temporal_address}
    for name, value in addresses.items():
        monkeypatch.setenv(f"MAINSPRING_{name}", value)

    async def move(name: str) -> Result:
        words = ["temporal", "move", name, "--home", str(tmp_path)]
        return await asyncio.to_thread(CliRunner().invoke, app, words)

    async with rollout_worker(tmp_path, **addresses) as worker:

        async def polls(name: str) -> bool:
            return name in await pollers(stack.temporal_address, worker.pid)

        await until(lambda: polls(before))
        refused = await move(stack.temporal_namespace)
        assert isinstance(refused.exception, ForeignNamespace)
        assert await store.namespace(fresh) == before
        moved = await move(after)
        assert moved.exit_code == 0, moved.exception
        assert f"moved to namespace {after}" in moved.output and f"before: {before}" in moved.output
        await until(lambda: polls(after))
        assert worker.returncode is None, "the same process, which nobody started again"
    client = await Client.connect(stack.temporal_address)
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=after)
    )
    assert described.namespace_info.data[OWNER_KEY] == await store.identity(fresh)
