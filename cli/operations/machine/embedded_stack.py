"""Bringing the embedded stack up and down, whole.

Invariants: `up` is idempotent, also for two at once (a lock file) and after any kill; what a failed
or interrupted `up` started is stopped again; a service configured by environment is never started
here. The addresses stand in `<home>/stack.json`, readable by their owner alone.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from temporalio.service import RPCError

from cli.operations.machine.frozen import KeptProcess
from infra.db.address import place
from infra.db.database import Database
from infra.db.store import identity, put_namespace
from infra.stack import home as homes
from infra.stack import ports
from infra.stack.ports import Forced
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import ANSWER_TIMEOUT_S, Temporal
from infra.temporal.connection import connect
from infra.temporal.service import settled
from mainspring.config.settings import USUAL_NAMESPACE, Settings, configured_settings, load_settings
from mainspring.errors import MainspringError, ServiceError
from migrations.upgrade import upgrade

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StackInfo:
    home: Path
    database_url: str
    temporal_address: str
    temporal_ui: str
    temporal_namespace: str


@dataclass(frozen=True, slots=True)
class ServiceState:
    service: str
    address: str
    pid: int | None
    """None: not started by the embedded stack, or not running."""
    problem: str
    """Empty: it answers and is fit for use."""

    @property
    def healthy(self) -> bool:
        return not self.problem

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "healthy": self.healthy}


async def up(home: Path, forced: Forced | None = None) -> StackInfo:
    """Everything running, healthy and migrated. Raises MainspringErrors naming the service."""
    home, forced = home.absolute(), forced or Forced()
    _check_ports(home, forced)
    homes.make(home)
    async with homes.locked(home):
        homes.refuse_half_restored(home)
        configured = configured_settings(home)
        postgres, temporal = Postgres(home), Temporal(home)
        started_here = [s for s in (temporal, postgres) if s.daemon.pid() is None]
        try:
            url = configured.database_url or await _thread(postgres.start, forced.postgres)
            await _thread(upgrade, configured.database_direct_url or url)
            namespace = await _namespace(url, configured)
            if not configured.temporal_address:
                await Temporal(home, namespace).start(forced)
                await _record(url, namespace)
            info = StackInfo(
                home,
                url,
                configured.temporal_address or temporal.address,
                configured.temporal_ui or ("" if configured.temporal_address else temporal.ui),
                namespace,
            )
            addresses = {key: value for key, value in asdict(info).items() if key != "home"}
            homes.record(home, addresses)
        except BaseException as error:
            for service in started_here:
                await _thread(service.stop)
            if isinstance(error, OSError):
                raise ServiceError(
                    f"the stack of {home} cannot be started: {error}",
                    remedy="fix what is named, or choose another folder with --home",
                ) from error
            raise
        return info


def _check_ports(home: Path, forced: Forced) -> None:
    """Before anything is made: a port somebody insists on is free, or its service has it."""
    postgres, temporal = Postgres(home).daemon, Temporal(home).daemon
    for service, port, daemon in (
        ("Postgres", forced.postgres, postgres),
        ("Temporal", forced.temporal, temporal),
        ("Temporal's UI", forced.ui, temporal),
    ):
        if port is not None and daemon.pid() is None:
            ports.choose(service, port, None, port, "")


async def _namespace(url: str, configured: Settings) -> str:
    """Where the store's work is, or is to be. The embedded Temporal's is named after the store:
    workers that reach another home's server by mistake find nothing there that they would poll.
    Raises OtherNamespace."""
    async with Database.open(url, pool_size=1) as database:
        namespace = (await settled(configured, database)).temporal_namespace
        if namespace or configured.temporal_address:
            return namespace or USUAL_NAMESPACE
        return f"mainspring-{(await identity(database))[:8]}"


async def _record(url: str, namespace: str) -> None:
    """Nodes that have a home of their own find it in the store."""
    async with Database.open(url, pool_size=1) as database:
        await put_namespace(database, namespace)


async def down(home: Path) -> list[str]:
    """Stop what runs; the names of what was stopped. Data stays."""
    home = home.absolute()
    if not (home / "lock").exists():
        return []
    homes.make(home)
    async with homes.locked(home):
        services = (Temporal(home), Postgres(home))
        return [s.daemon.name for s in services if await _thread(s.stop)]


async def revive(home: Path) -> list[str]:
    """Start again what ended of a stack that is up, at its old addresses; the names of it."""
    home = home.absolute()
    configured = configured_settings(home)
    embedded = {
        "postgres": not configured.database_url and Postgres(home).daemon.pid() is None,
        "temporal": not configured.temporal_address and Temporal(home).daemon.pid() is None,
    }
    ended = [name for name, is_dead in embedded.items() if is_dead]
    if ended:
        await up(home)
    return ended


def services_watched(home: Path) -> list[KeptProcess]:
    """Embedded services that run, each with its children."""
    daemons = (Postgres(home.absolute()).daemon, Temporal(home.absolute()).daemon)
    pids = [(daemon.name, daemon.pid()) for daemon in daemons]
    return [KeptProcess(name, pid, with_children=True) for name, pid in pids if pid is not None]


async def status(home: Path) -> list[ServiceState]:
    """State of each service, for the home folder's stack or the configured services."""
    home = home.absolute()
    settings, configured = load_settings(home), configured_settings(home)
    postgres, temporal = Postgres(home).daemon.pid(), Temporal(home).daemon.pid()
    absent = not configured.database_url and postgres is None
    database_problem = (
        "is not running" if absent else await _database_problem(settings.database_url)
    )
    return [
        ServiceState(
            "postgres",
            place(settings.database_url),
            None if configured.database_url else postgres,
            database_problem,
        ),
        ServiceState(
            "temporal",
            settings.temporal_address,
            None if configured.temporal_address else temporal,
            "is not running"
            if not configured.temporal_address and temporal is None
            else await _temporal_problem(settings, database_answers=not database_problem),
        ),
    ]


@asynccontextmanager
async def temporary(prefix: str) -> AsyncIterator[StackInfo]:
    """A stack for the length of a block, in a folder that goes with it, data and all."""
    home = Path(tempfile.mkdtemp(prefix=prefix))
    # Others may pass but not look: root's Postgres runs as `nobody`, inside this folder.
    home.chmod(0o711)
    try:
        yield await up(home)
    finally:
        await down(home)
        data = Postgres(home).data
        if data.is_symlink():
            shutil.rmtree(data.resolve())
        _remove(home)


def _remove(home: Path) -> None:
    """A sandbox that lost its node removes its own folder, perhaps at this moment."""
    while home.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(home)


async def _thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread, awaited to its end also when cancelled: what it starts must be known then."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # seen, and of no interest: the same signal may have ended what it ran
        raise


async def _database_problem(url: str) -> str:
    try:
        async with Database.open(url, pool_size=1) as database:
            await database.check()
    except MainspringError as error:
        return error.message
    return ""


async def _temporal_problem(settings: Settings, *, database_answers: bool) -> str:
    try:
        if database_answers:
            async with Database.open(settings.database_url, pool_size=1) as database:
                settings = await settled(settings, database)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            client = await connect(settings)
            await client.count_workflows()
    except MainspringError as error:
        return error.message.removeprefix(f"Temporal at {settings.temporal_address} ")
    except (RPCError, TimeoutError):
        return "does not answer"
    return ""
