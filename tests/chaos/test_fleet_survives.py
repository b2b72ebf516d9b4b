"""Rollouts on two nodes whose processes, shells and containers are killed all the time.

The nodes are real `mainspring worker sandbox` processes, each with its own state folder, kept
running like systemd would. Every command leaves a line inside its sandbox, and the last one prints
them all: a command that ran twice, or not at all, shows. Where a Docker daemon can be started, half
of the tasks run in its containers, and it is restarted in the middle.
"""

import asyncio
import contextlib
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from cluster import Cluster, bwrap_or_skip, cluster_of
from docker.errors import DockerException
from sandbox_backend import IMAGE, build_image
from scripted import SUBMIT, bash
from temporalio.client import WorkflowHandle

from activities.grading import MAX_ATTEMPTS
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.cache import FactCache
from infra.db.nodes import sandboxes
from infra.db.rollouts import turns
from infra.environments.hosted import Environments
from infra.sandbox.backends import available_backends
from infra.sandbox.protocol import BackendUnavailable
from mainspring.ids import NodeId, RolloutId
from mainspring.protocol.rollout import RolloutResult
from mainspring.status import SandboxPurpose
from node.held_sandboxes import HeldSandboxes
from node.reaper import Reaper
from tests.dockerd import Dockerd, own_dockerd, reason_for_none
from tests.waiting import until

NUM_ROLLOUTS = int(os.environ.get("MAINSPRING_CHAOS_ROLLOUTS", "40"))
"""A multiple of GROUP_SIZE. More are the better test, and take longer: 200 about three minutes."""
GROUP_SIZE = 20
NUM_TURNS = 4
TIMEOUT_S = 500.0 + 2.0 * NUM_ROLLOUTS
KILL_EVERY_S = 1.5
FIRST_NODE_KILL_S = 4.0
"""Soon: on a fast machine the rollouts end within seconds."""
NODE_KILL_EVERY_S = 15.0
"""A node needs a second or two to be up again; more often would only test the interpreter."""
KILL_UNTIL = NUM_ROLLOUTS * 9 // 10
"""Later the same few would be hit again and again."""
SPARED = re.compile(rf"\.grade{MAX_ATTEMPTS}\b")
"""The last sandbox of a grading: without it the rollout is masked, as it should be."""
FIX = r"printf 'def add(a, b):\n    return a + b\n' > calc.py"


def command(turn: int) -> str:
    """Slow enough to be hit while it runs; the last one shows what ran in this sandbox."""
    mark = f"echo turn{turn} >> /tmp/ran; sleep 0.2"
    return f"{mark}; {FIX}; cat /tmp/ran" if turn == NUM_TURNS - 1 else f"{mark}; echo {turn}"


def reply(rollout: str, turn: int) -> str:
    return bash(command(turn)) if turn < NUM_TURNS else SUBMIT


@dataclass(slots=True)
class NodeProcess:
    """One container host: started again whenever it ends, as systemd does it."""

    name: str
    home: Path
    stack: StackInfo
    docker_host: str
    process: asyncio.subprocess.Process | None = None
    keeper: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        environment = {
            **os.environ,
            "MAINSPRING_HOME": str(self.home),
            "MAINSPRING_NODE_ID": self.name,
            "MAINSPRING_DATABASE_URL": self.stack.database_url,
            "MAINSPRING_TEMPORAL_ADDRESS": self.stack.temporal_address,
            "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
            "DOCKER_HOST": self.docker_host,
        }
        arguments = ["worker", "sandbox", "--capacity", "8", "--leave-sandboxes"]
        while True:
            with (self.home / "node.log").open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "mainspring", *arguments),
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            await self.process.wait()

    def kill(self) -> bool:
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.kill()
        return True


@asynccontextmanager
async def running(nodes: list[NodeProcess]) -> AsyncIterator[None]:
    keepers = [asyncio.create_task(node.keep()) for node in nodes]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.wait(keepers)
        for node in nodes:
            if node.kill() and node.process is not None:
                await node.process.wait()


@dataclass(slots=True)
class Killer:
    nodes: list[NodeProcess]
    daemon: Dockerd | None
    num_over: int = 0
    """Rollouts that have ended."""
    done: Counter[str] = field(default_factory=Counter)
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    async def run(self) -> None:
        node_kill_at = time.monotonic() + FIRST_NODE_KILL_S
        while self.num_over < KILL_UNTIL:
            await asyncio.sleep(KILL_EVERY_S * self.dice.uniform(0.5, 1.5))
            if time.monotonic() > node_kill_at:
                self.done["node"] += self.dice.choice(self.nodes).kill()
                node_kill_at = time.monotonic() + NODE_KILL_EVERY_S
            elif self.daemon and not self.done["dockerd"] and self.num_over > NUM_ROLLOUTS // 3:
                self.done["dockerd"] += 1
                await self.daemon.stop()
                await self.daemon.start()
            elif self.daemon and self.dice.random() < 0.5:
                killed = await asyncio.to_thread(self._kill_a_container, self.daemon)
                self.done["container"] += killed
            else:
                self.done["shell"] += self._kill_a_shell()

    def _kill_a_container(self, daemon: Dockerd) -> bool:
        with daemon.client() as client, contextlib.suppress(DockerException, IndexError):
            containers = client.containers.list()
            self.dice.choice([it for it in containers if not SPARED.search(it.name)]).kill()
            return True
        return False  # there was none, or it ended by itself meanwhile

    def _kill_a_shell(self) -> bool:
        """Process 1 of some bubblewrap sandbox of these nodes."""
        homes = tuple(f"{node.home}/" for node in self.nodes)
        boxes = [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(part.startswith(homes) for part in process.info["cmdline"] or ())
            and not any(SPARED.search(part) for part in process.info["cmdline"])
        ]
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            self.dice.choice(boxes).children()[0].kill()
            return True
        return False


@asynccontextmanager
async def daemon_with_image() -> AsyncIterator[Dockerd | None]:
    """None, and why on the output: the rollouts then run in bubblewrap alone."""
    reason = reason_for_none()
    if reason is None:
        try:
            await asyncio.to_thread(build_image)
        except pytest.skip.Exception as skipped:
            reason = str(skipped)
    if reason is not None:
        print(f"without Docker: {reason}")
        yield None
        return
    # Not below pytest's own folder: a socket's path may have about 100 characters.
    async with own_dockerd(Path(tempfile.mkdtemp()) / "docker") as daemon:
        await asyncio.to_thread(daemon.load, IMAGE)
        yield daemon


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S + 60)
async def test_no_rollout_is_lost_and_nothing_stays_behind(stack: StackInfo, tmp_path: Path):
    await bwrap_or_skip(tmp_path / "probe")
    async with daemon_with_image() as daemon, cluster_of(stack, {}) as cluster:
        address = daemon.address if daemon else f"unix://{tmp_path}/none"
        nodes = [
            NodeProcess(f"chaos-{n}", tmp_path / f"chaos-{n}", stack, address) for n in range(2)
        ]
        for node in nodes:
            node.home.mkdir()
        killer = Killer(nodes, daemon)
        cluster.policy.say = reply
        async with running(nodes):
            killing = asyncio.create_task(killer.run())
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    results = await play(cluster, IMAGE if daemon else None, killer)
            finally:
                killing.cancel()
                await asyncio.wait([killing])
        ends = {
            (await cluster.row(rollout)).fault or result.stop_reason
            for rollout, result in results.items()
            if result.reward != 1.0
        }
        assert not ends and len(results) == NUM_ROLLOUTS
        lives = Counter[int]()
        for rollout in results:
            calls, executions = await turns.history(cluster.db, rollout, 0)
            assert [it.number for it in calls] == list(range(NUM_TURNS + 1))
            shown = executions[NUM_TURNS - 1].output.decode().split()
            assert shown == [f"turn{n}" for n in range(NUM_TURNS)], (rollout, shown)
            leases = await sandboxes.rollout_leases(cluster.db, rollout)
            lives[sum(lease.purpose == SandboxPurpose.AGENT for lease in leases)] += 1
        print(
            f"killed {dict(killer.done)}; sandboxes a rollout used: {dict(sorted(lives.items()))}"
        )
        assert killer.done["node"] and killer.done["shell"]
        assert daemon is None or (killer.done["container"] and killer.done["dockerd"])
        await nothing_is_left(cluster, nodes, daemon)


async def play(
    cluster: Cluster, image: str | None, killer: Killer
) -> dict[RolloutId, RolloutResult]:
    started = []
    for number in range(NUM_ROLLOUTS // GROUP_SIZE):
        campaign, group, ids = await cluster.make_rollouts(
            GROUP_SIZE, image=image if number % 2 else None
        )
        started += [(rollout, await cluster.start(rollout, campaign, group)) for rollout in ids]
    results: dict[RolloutId, RolloutResult] = {}

    async def wait_for(rollout: RolloutId, handle: WorkflowHandle) -> None:
        results[rollout] = await handle.result()
        killer.num_over = len(results)

    await asyncio.gather(*(wait_for(*each) for each in started))
    return results


async def nothing_is_left(
    cluster: Cluster, nodes: list[NodeProcess], daemon: Dockerd | None
) -> None:
    """After what every node does when it starts: all its rollouts are over."""
    for node in nodes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", node.docker_host)
            backends = await available_backends(node.home / "sandboxes")
        held = HeldSandboxes(
            cluster.db, FactCache(cluster.db), NodeId(node.name), Environments(backends)
        )
        await held.adopt()
        await Reaper(cluster.db, NodeId(node.name), backends, held).reap()
        for backend in backends.values():
            if not isinstance(backend, BackendUnavailable):
                assert await backend.list_open() == []
        assert await sandboxes.open_leases(cluster.db, NodeId(node.name)) == []
    if daemon is not None:
        with daemon.client() as client:
            assert client.containers.list(all=True) == []
    homes = tuple(f"{node.home}/" for node in nodes)

    def has_none() -> bool:
        commands = [process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])]
        return not [it for it in commands if any(part.startswith(homes) for part in it)]

    await until(has_none)  # on a busy machine a process outlives its SIGKILL for a moment
