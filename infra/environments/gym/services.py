"""The services that one node asks: one client, and one service for each campaign and environment.

Invariants: no two worlds have the same id of a service at once: services that hold a fixed number
give such an id twice, and two rollouts would act on one world; a service without a route to close
never frees a world, so ids that are free are used again. A service that a node started is
stopped when no world of it was used for IDLE_S, and with the node. Used by the worlds.
"""

import asyncio
import hashlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from infra.environments.gym.client import GymClient, http_client
from infra.environments.gym.service import LOOK_S, ServiceProcess
from infra.functions.labelled import kill_left, label_of
from mainspring.config.agents.environments import EnvironmentConfig
from mainspring.environments.families import form_of
from mainspring.environments.protocol import EnvironmentBroken, WorldLost
from mainspring.errors import SandboxError
from mainspring.status import FaultKind

IDLE_S = 600.0
CLOSE_S = 5.0
CONCURRENCY = 128
"""Requests to one service under way at once; more wait, and their time limits have not begun."""
Told = Callable[[str, str, str], Awaitable[None]]
"""Called with the campaign, the environment and one sentence."""
log = structlog.get_logger()


async def _not_told(campaign: str, environment: str, text: str) -> None:
    """Where there is no store: a check before a run is stored."""


class WorldsFull(SandboxError):
    """The service holds as many worlds as it can: another node is asked, or this one later."""

    fault = FaultKind.NODE_FULL


@dataclass(slots=True)
class WorldIds:
    """Ids of one service's worlds."""

    used: set[int | str] = field(default_factory=set)
    free: list[int | str] = field(default_factory=list)
    """Ids of worlds that ended and cannot be closed: a reset makes new ones of them."""


class GymService:
    """One service: its address, its process where this node starts it, and its worlds."""

    def __init__(
        self,
        services: "GymServices",
        campaign: str,
        name: str,
        config: EnvironmentConfig,
        ident: str,
    ) -> None:
        self.name = name
        self._campaign = campaign
        self.config = config
        self.form = form_of(config)
        self._services = services
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._one_starts = asyncio.Lock()
        self._ids = services.ids_at(config.url) if config.url else WorldIds()
        self._num_worlds = 0
        """Those being opened included."""
        self._idle: asyncio.TimerHandle | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._client = self._client_of(config.url)
        self.life = 0
        """Number of its process; the worlds of an earlier one are lost."""
        self.process: ServiceProcess | None = None
        self._has_answered = False
        """Its newest process."""
        if not config.url:
            path = services.folder / f"{ident}.log"
            label = label_of(services.owner, ident)
            self.process = ServiceProcess(name, config, path, label)

    def begin_world(self) -> None:
        """Before one is opened. Raises WorldsFull."""
        most = self.form.worlds
        if most is not None and self._num_worlds >= most:
            raise WorldsFull(
                f"environment {self.name}: its service holds {most} worlds, and all are in use",
                remedy=f"start more sandbox nodes, or raise environments.{self.name}.worlds",
            )
        self._num_worlds += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def end_world(self) -> None:
        self._num_worlds -= 1
        if self.process is not None and not self._num_worlds:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._stop_idle)

    async def running(self) -> None:
        """Start its process where it has one that does not live. Raises EnvironmentBroken."""
        if self.process is None or self._is_up():
            return
        async with self._one_starts:
            if self._is_up():
                return
            if words := self.process.how_it_ended():
                log.warning("a service is started again", environment=self.name, reason=words)
                text = f"service of environment {self.name} is started again: {words}"
                await self._services.told(self._campaign, self.name, text)
            self._has_answered = False  # it lives before it answers
            self.life += 1
            self._ids = WorldIds()
            await self.process.start(self._is_there)
            self._client = self._client_of(self.process.url)
            self._has_answered = True

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[GymClient]:
        """While one of its requests is this one. What is lost names how its process ended, and one
        that hangs is ended."""
        async with self._slots:
            try:
                yield self._client
            except WorldLost as lost:
                raise await self._explained(lost) from lost

    async def take_id(self, number: int) -> int | str:
        """The id of a world that no other one here has. Raises WorldLost, EnvironmentBroken and
        WorldsFull."""
        ids = self._ids
        if ids.free:
            ident = ids.free.pop()
        else:
            async with self.asking() as client:
                ident = await client.create(number, self.config.request_timeout_s)
        if ident in ids.used:
            raise WorldsFull(
                f"environment {self.name}: its service gave the id {ident} twice: it has no more "
                "worlds",
                remedy=f"set environments.{self.name}.worlds = {len(ids.used)}",
            )
        ids.used.add(ident)
        return ident

    async def give_back(self, ident: int | str, life: int) -> None:
        """End a world. One that cannot be closed is left, and told in the log."""
        if life != self.life:
            return
        if self.form.closes:
            try:
                async with self._slots:
                    await self._client.close(ident, CLOSE_S)
            except (WorldLost, EnvironmentBroken) as error:
                log.warning("a world was not closed", environment=self.name, reason=error.message)
        if life == self.life and ident in self._ids.used:
            self._ids.used.discard(ident)
            if not self.form.closes:
                self._ids.free.append(ident)

    def answered(self) -> None:
        if self.process is not None:
            self.process.answered()

    async def stop(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self.process is not None:
            await self.process.stop()

    async def _explained(self, lost: WorldLost) -> WorldLost:
        process = self.process
        if process is None:
            return lost
        if not await process.has_ended() and not await self._is_there(process.url, LOOK_S):
            async with self._one_starts:
                if process.lives and not await self._is_there(process.url, LOOK_S):
                    log.warning("a service that hangs is ended", environment=self.name)
                    text = f"service of environment {self.name} hung and was ended"
                    await self._services.told(self._campaign, self.name, text)
                    await process.stop()
            return lost
        words = process.how_it_ended()
        return type(lost)(f"{lost.message}; {words}", remedy=lost.remedy) if words else lost

    def _is_up(self) -> bool:
        return self.process is not None and self.process.lives and self._has_answered

    async def _is_there(self, url: str, timeout_s: float) -> bool:
        return await self._client_of(url).is_there(timeout_s)

    def _client_of(self, url: str) -> GymClient:
        return GymClient(self._services.http, self.name, url, self.form)

    def _stop_idle(self) -> None:
        if not self._num_worlds:
            stopping = asyncio.create_task(self.stop())
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)


class GymServices:
    """Services of one node, each made when it is first asked for."""

    def __init__(self, folder: Path | None, told: Told = _not_told) -> None:
        """`folder`: of this node alone, for logs; None: a temporary one, which stays only where a
        log tells why its service broke. `told`: of a service that failed."""
        self.told = told
        self._folder = folder
        self._is_temporary = folder is None
        self._services: dict[tuple[str, str, str], GymService] = {}
        self._ids: dict[str, WorldIds] = {}
        self.http = http_client()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="mainspring-environments-"))
        return self._folder

    @property
    def owner(self) -> str:
        return str(self.folder.absolute())

    def of(self, campaign: str, name: str, config: EnvironmentConfig) -> GymService:
        fields = config.model_dump_json()
        key = campaign, name, fields
        if key not in self._services:
            digest = hashlib.sha256(f"{campaign}\n{fields}".encode()).hexdigest()[:8]
            plain_name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{campaign}.{name}")
            self._services[key] = GymService(self, campaign, name, config, f"{plain_name}.{digest}")
        return self._services[key]

    def ids_at(self, url: str) -> WorldIds:
        """Ids of a service that runs already, which all campaigns of the node share."""
        return self._ids.setdefault(url, WorldIds())

    async def clear_left(self) -> None:
        """End what a process of this node left that could not end its services."""
        if self._folder is not None:
            await asyncio.to_thread(kill_left, self.owner)

    async def close(self) -> None:
        await asyncio.gather(*(service.stop() for service in self._services.values()))
        await self.http.aclose()
        processes = [each.process for each in self._services.values() if each.process]
        if self._is_temporary and not any(process.is_broken for process in processes):
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
