"""A campaign's processes on one machine, of those: engine, rollout worker, sandbox node, trainer.

Those whose imports can be done ahead are forked (`cli.operations.machine.forks`): after a kill most
of the time would be imports. Invariants: a process that dies is started again (that is all the
durability a process needs: what it was doing is retried from Postgres); a process that keeps dying
ends the fleet with its cause and its log's path; no process outlives the fleet, even when that is
killed.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cli.operations.machine.embedded_stack import revive, services_watched
from cli.operations.machine.fork_request import die_with_parent
from cli.operations.machine.forks import Forked, Forks
from cli.operations.machine.frozen import LOOK_S, FrozenWatch, KeptProcess
from cli.operations.machine.process_ends import LifeBegun, ProcessEnd
from cli.operations.machine.spoken import spoken
from mainspring.config.run import RunConfig
from mainspring.config.settings import Settings, load_settings
from mainspring.errors import DatabaseError, WorkFailed
from mainspring.programs.profiles.choice import is_program
from mainspring.status import EventKind
from workers.service_link import refuse_moved

MAX_QUICK_DEATHS = 4
"""Lives in a row shorter than QUICK_S that mean the process cannot run at all."""
QUICK_S = 30.0
RESTART_DELAY_S = 0.5
"""After a life shorter than QUICK_S: what is missing may come. Others are started at once."""
STOP_TIMEOUT_S = 40.0
"""A node drains for ten seconds, then removes up to a hundred sandboxes."""
POLL_S = 0.5
ANSWER_LOOK_S = 0.2
UNREACHABLE_S = 120.0
"""A Postgres that was killed recovers its log before it answers again."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""On CPU every process gets one compute thread."""
Told = Callable[[EventKind, str, str], None]
"""Called with an event's kind, subject and sentence."""
WORKERS = ("workers.rollout", "workers.sandbox")
"""Modules that a fork server imports ahead."""


@dataclass(slots=True)
class Member:
    """One process of the fleet."""

    name: str
    arguments: list[str]
    """After `python -m` and the module."""
    waits_for: Path | None = None
    """Started once this file exists (the engine waits for the first model)."""
    environment: dict[str, str] = field(default_factory=dict)
    module: str = "mainspring"
    imports: tuple[str, ...] = ()
    """Modules that a fork server imports ahead, and that leave it with one thread; without any the
    member starts by itself."""
    is_needed: bool = True
    """Without one that is not, the others work: it is left alone when it cannot run."""
    is_asked: bool = False
    """An engine: the others ask it until they end, and would tell of its end as a loss."""
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Entered for each start, until the member `answers` or has ended."""
    answers: Callable[[], Awaitable[bool]] | None = None
    process: asyncio.subprocess.Process | Forked | None = None
    num_quick_deaths: int = 0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.process.returncode is None else None


class Fleet:
    def __init__(
        self, members: list[Member], logs: Path, on_restart: Callable[[ProcessEnd], None]
    ) -> None:
        """`on_restart` is told of each end that another life follows."""
        self.members = {member.name: member for member in members}
        self._logs = logs
        self._on_restart = on_restart
        self._keepers: list[asyncio.Task[None]] = []
        self._forks: dict[object, Forks] = {}
        """By what is imported and the environment that this needs."""

    async def __aenter__(self) -> "Fleet":
        self._logs.mkdir(parents=True, exist_ok=True)
        self._keepers = [asyncio.create_task(self._keep(m)) for m in self.members.values()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for is_asked in (False, True):
            ending = [each for each in self.members.values() if each.is_asked is is_asked]
            await asyncio.gather(*map(self._stop, ending))
        await asyncio.gather(*(forks.close() for forks in self._forks.values()))

    def watched(self) -> list[KeptProcess]:
        """Processes of now whose standing still holds up the others."""
        processes = [
            KeptProcess(member.name, member.pid, with_children=member.name != "sandbox")
            for member in self.members.values()
            if member.pid is not None
        ]
        servers = [server.pid for server in self._forks.values()]
        return processes + [
            KeptProcess("fork server", pid, False) for pid in servers if pid is not None
        ]

    def check(self) -> None:
        """Raises WorkFailed when a member cannot be kept running."""
        for keeper in self._keepers:
            if keeper.done():
                keeper.result()

    async def _keep(self, member: Member) -> None:
        while member.waits_for is not None and not member.waits_for.exists():
            await asyncio.sleep(0.2)
        while True:
            started = time.monotonic()
            life = LifeBegun.now(self.log(member.name))
            async with member.turn():
                member.process = await self._start(member)
                while member.answers and member.pid is not None and not await member.answers():
                    await asyncio.sleep(ANSWER_LOOK_S)
            end = life.ended(member.name, await member.process.wait())
            quick = time.monotonic() - started < QUICK_S
            member.num_quick_deaths = member.num_quick_deaths + 1 if quick else 0
            if member.num_quick_deaths == MAX_QUICK_DEATHS:
                if not member.is_needed:
                    return
                raise WorkFailed(
                    f"{end.cause}: {end.name} ended {MAX_QUICK_DEATHS} times in a row within "
                    f"{QUICK_S:.0f} s of its start ({end.how}); its log is {end.log}",
                    remedy="fix what the log names, then repeat the command to resume",
                )
            self._on_restart(end)
            if quick:
                await asyncio.sleep(RESTART_DELAY_S)

    async def _start(self, member: Member) -> asyncio.subprocess.Process | Forked:
        if member.imports:
            return await self._forks_for(member).start(
                member.arguments, member.environment, self.log(member.name)
            )
        with self.log(member.name).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                member.module,
                *member.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **member.environment},
                preexec_fn=die_with_parent,
                start_new_session=True,
            )

    def _forks_for(self, member: Member) -> Forks:
        key = member.imports, tuple(sorted(member.environment.items()))
        if key not in self._forks:
            log = self.log(f"fork-server-{len(self._forks) + 1}")
            self._forks[key] = Forks(member.imports, member.environment, log)
        return self._forks[key]

    async def _stop(self, member: Member) -> None:
        process = member.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def rollout_member(settings: Settings) -> Member:
    arguments = ["worker", "rollout", "--home", str(settings.home)]
    return Member("rollout", arguments, environment=ONE_THREAD, imports=WORKERS)


def sandbox_member(settings: Settings, capacity: int) -> Member:
    arguments = ["worker", "sandbox", "--home", str(settings.home), "--capacity", str(capacity)]
    return Member("sandbox", arguments, environment=ONE_THREAD, imports=WORKERS)


def gateway_members(settings: Settings, config: RunConfig) -> list[Member]:
    """One gateway where a program may play, and gateways elsewhere are not configured."""
    has_program = any(map(is_program, config.agent_sections.values()))
    if not has_program or settings.gateway_addresses:
        return []
    arguments = ["worker", "gateway", "--home", str(settings.home)]
    return [Member("gateway", arguments, environment=ONE_THREAD)]


async def keep_until(
    ended: Callable[[], Awaitable[bool]],
    fleet: Fleet,
    home: Path,
    say: Callable[[str], None],
    told: Told = lambda kind, subject, text: None,
) -> None:
    """Keep everything running until `ended`, Postgres and Temporal too where they are embedded.
    What stands still is ended, and started again. `told`: of both, beside `say`.

    Raises ServicesMoved when somebody brought these up with other ports.
    """
    watching = asyncio.create_task(_end_frozen(fleet, home, say, told))
    try:
        await _keep_until(ended, fleet, home, say, told)
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _end_frozen(fleet: Fleet, home: Path, say: Callable[[str], None], told: Told) -> None:
    """Beside the rest: what stands still may be what that waits for."""
    watch = FrozenWatch()
    while True:
        await asyncio.sleep(LOOK_S)
        for process in watch.end_frozen([*fleet.watched(), *services_watched(home)]):
            say(f"{process}; it is started again")
            told(EventKind.PROCESS_FROZEN, process.name, str(process))


async def _keep_until(
    ended: Callable[[], Awaitable[bool]],
    fleet: Fleet,
    home: Path,
    say: Callable[[str], None],
    told: Told,
) -> None:
    settings = load_settings(home)
    answered = time.monotonic()
    while True:
        refuse_moved(settings)
        for name in await revive(home):
            say(f"{name} ended: started again")
            told(EventKind.SERVICE_REVIVED, name, f"{name} ended and was started again")
        fleet.check()
        try:
            if await spoken(ended(), lambda: settings, say):
                return
            answered = time.monotonic()
        except DatabaseError:
            if time.monotonic() - answered > UNREACHABLE_S:
                raise
        await asyncio.sleep(POLL_S)
