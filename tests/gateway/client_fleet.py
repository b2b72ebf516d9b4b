"""Processes that installed clients play with, each of which a test can kill: gateway, node, engine,
rollout worker, Postgres, Temporal, sandboxes and the clients in them.

The replies are a script's (`scripted_process`); workflow, store, gateway, node, model port and
clients are the real ones.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from cluster import Cluster, without_workers

from cli.operations.machine.embedded_stack import StackInfo, revive
from infra.stack import ports
from mainspring.errors import MainspringError
from mainspring.ids import RolloutId
from mainspring.programs.profile import BUNDLES
from tests.chaos import fault_schedule
from tests.chaos.fault_roles import Role
from tests.gateway.kill_plan import KillPlan
from tests.infra.policy.chat_templates import tokenizer_of
from tests.processes import words
from tests.waiting import until

LOOK_S = 0.2
SERVICES = (Role.POSTGRES, Role.TEMPORAL)


@dataclass(slots=True)
class ClientFleet:
    stack: StackInfo
    plan: KillPlan
    cluster: Cluster
    commands: dict[Role, list[str]]
    processes: dict[Role, subprocess.Popen[bytes]] = field(default_factory=dict)
    keeping: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raise what ended the keeping, after which nothing would be started again."""
        if self.keeping is not None and self.keeping.done():
            self.keeping.result()

    def is_up(self, role: Role) -> bool:
        """It wrote that once it had started."""
        self.check()
        log = self.log_of(role)
        return log.exists() and b" is up" in log.read_bytes()

    def log_of(self, role: Role) -> Path:
        return self.stack.home / f"fleet.{role}.log"

    async def keep(self) -> None:
        """Start again what ended."""
        while True:
            for role, command in self.commands.items():
                process = self.processes.get(role)
                if process is None or process.poll() is not None:
                    self.processes[role] = self._start(role, command)
            with contextlib.suppress(MainspringError):  # it was killed as it started
                await revive(self.stack.home)
            await asyncio.sleep(LOOK_S)

    async def kill(self, role: Role) -> None:
        """One that all rollouts share."""
        if role not in SERVICES:
            self.processes[role].kill()
            return
        found = await asyncio.to_thread(list, fault_schedule.processes(self.stack.home))
        for each in [process for its, process in found if its is role]:
            _kill_all(each)

    async def kill_sandbox(self, rollout: RolloutId) -> None:
        for each in await asyncio.to_thread(self._sandboxes, rollout):
            _kill_all(each)

    async def kill_client(self, rollout: RolloutId) -> None:
        """The client's own process, not what started it."""
        [client, *_] = await asyncio.to_thread(self._clients, rollout)
        client.kill()

    def _sandboxes(self, rollout: RolloutId) -> list[psutil.Process]:
        name = f"{rollout.replace('/', '.')}.e"
        return [
            process
            for process in psutil.process_iter()
            if _program(process) == "bwrap" and any(name in word for word in _words(process))
        ]

    def _clients(self, rollout: RolloutId) -> list[psutil.Process]:
        """The oldest first."""
        inside: dict[int, psutil.Process] = {}
        for sandbox in self._sandboxes(rollout):
            for child in sandbox.children(recursive=True):
                runs = any(BUNDLES in word for word in _words(child))
                if runs and _program(child) not in ("bwrap", "bash", "setpriv", "sh"):
                    inside[child.pid] = child
        return sorted(inside.values(), key=lambda each: (each.create_time(), each.pid))

    def _start(self, role: Role, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "MAINSPRING_HOME": str(self.stack.home),
            "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
            "OMP_NUM_THREADS": "1",
        }
        with self.log_of(role).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@asynccontextmanager
async def client_fleet(stack: StackInfo, folder: Path, capacity: int) -> AsyncIterator[ClientFleet]:
    model, plans, home = folder / "model", folder / "plans", str(stack.home)
    plans.mkdir()
    tokenizer_of("qwen_like").save_pretrained(model)
    port = str(ports.pick())
    tests = "tests.gateway"
    commands = {
        Role.ENGINE: [f"{tests}.scripted_process", port, str(plans)],
        Role.ROLLOUT: [f"{tests}.scripted_worker", home, str(model), f"http://127.0.0.1:{port}"],
        Role.GATEWAY: [f"{tests}.dying_gateway", home, str(plans)],
        Role.NODE: ["mainspring", "worker", "sandbox", "--capacity", str(capacity), "--home", home],
    }
    async with without_workers(stack) as cluster:
        fleet = ClientFleet(stack, KillPlan(plans), cluster, commands)
        fleet.keeping = keeping = asyncio.create_task(fleet.keep())
        try:
            # A group whose rollouts do not begin within a minute is swept: it has no workflow here.
            await until(lambda: all(map(fleet.is_up, (Role.ROLLOUT, Role.GATEWAY, Role.NODE))))
            yield fleet
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            for process in fleet.processes.values():
                process.kill()
                process.wait()
            for process in psutil.process_iter():
                if _program(process) == "bwrap" and any(home in w for w in _words(process)):
                    _kill_all(process)


def _kill_all(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()


def _words(process: psutil.Process) -> list[str]:
    try:
        return words(process)
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def _program(process: psutil.Process) -> str:
    return Path((_words(process) or [""])[0]).name
