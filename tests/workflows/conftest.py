"""One node's cluster for the tests of a module, and a policy that has said nothing yet."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cluster import Cluster, Host, bwrap_or_skip, cluster_of
from guessing import EXAMPLE
from program_cluster import ProgramCluster, program_cluster, without_gateway

from cli.operations.embedded_stack import StackInfo
from mainspring.ids import NodeId
from tests.sandboxed import SANDBOXED

NODE = NodeId("test-node")


@pytest.fixture(scope="module")
async def workers(
    request: pytest.FixtureRequest, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """A module that replays what it runs names another `RUNNER` of workflows than the sandbox."""
    backends = await bwrap_or_skip(tmp_path_factory.mktemp("sandboxes"))
    runner = getattr(request.module, "RUNNER", SANDBOXED)
    async with cluster_of(stack, {NODE: Host(backends, capacity=16)}, runner) as cluster:
        yield cluster


@pytest.fixture
async def cluster(workers: Cluster) -> AsyncIterator[Cluster]:
    """The shared workers with a policy that has said nothing yet."""
    workers.policy.asked.clear()
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
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ProgramCluster]:
    backends = await bwrap_or_skip(tmp_path_factory.mktemp("sandboxes"))
    hosts = {NODE: Host(backends, capacity=8)}
    async with program_cluster(stack, hosts, tmp_path_factory.mktemp("model")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
async def ungated(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ProgramCluster]:
    """Without a gateway: each test starts its own."""
    backends = await bwrap_or_skip(tmp_path_factory.mktemp("sandboxes"))
    hosts = {NODE: Host(backends, capacity=8)}
    async with without_gateway(stack, hosts, tmp_path_factory.mktemp("model")) as cluster:
        yield cluster


@pytest.fixture
async def programs(program_workers: ProgramCluster) -> ProgramCluster:
    """The shared workers and gateway, with an engine that has said nothing yet."""
    program_workers.engine.forget()
    return program_workers
