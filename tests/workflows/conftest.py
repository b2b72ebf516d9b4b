"""One node's cluster for all modules of a test process, and a policy that has said nothing yet."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster import Cluster, cluster_of
from guessing import EXAMPLE
from program_cluster import (
    ProgramCluster,
    one_node,
    program_cluster,
    standing_cluster,
    ungated_cluster,
)
from scripted import SUBMIT
from sqlalchemy import select

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.tables.models import CampaignRow
from tests.conftest import Standing


@pytest.fixture(scope="module")
async def workers(
    standing: Standing, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    @asynccontextmanager
    async def make() -> AsyncIterator[Cluster]:
        async with cluster_of(stack, await one_node(tmp_path_factory, 16)) as cluster:
            yield cluster

    cluster: Cluster = await standing.get("workers", make)
    await cluster.remove_sandboxes()
    return cluster


@pytest.fixture
async def cluster(workers: Cluster) -> AsyncIterator[Cluster]:
    """The shared workers with a policy that has said nothing yet."""
    workers.policy.asked.clear()
    # What an earlier test left may have nothing more to say, and such a reply is retried for a day.
    workers.policy.say = lambda rollout, turn: SUBMIT
    workers.policy.gate = None
    workers.policy.hold = None
    workers.policy.say_by_seed = None
    workers.policy.begun.clear()
    yield workers


@pytest.fixture
def side_effects(tmp_path: Path) -> Path:
    return tmp_path / "side-effects"


@pytest.fixture
def guess_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example environment, and classes of test modules, can be named by path."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("guess", None)


@pytest.fixture(scope="module")
async def program_workers(
    standing: Standing, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> ProgramCluster:
    return await standing_cluster(
        "program_workers", program_cluster, standing, stack, tmp_path_factory
    )


@pytest.fixture(scope="module")
async def ungated(
    standing: Standing, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> ProgramCluster:
    return await ungated_cluster(standing, stack, tmp_path_factory)


@pytest.fixture
async def programs(program_workers: ProgramCluster) -> ProgramCluster:
    """The shared workers and gateway, with an engine that has said nothing yet."""
    async with program_workers.workers.db.statement() as connection:
        others = (await connection.execute(select(CampaignRow.id))).scalars().all()
    program_workers.engine.forget(others)
    return program_workers
