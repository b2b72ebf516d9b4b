"""Bringing the embedded stack up and down, whole.

Invariants: `up` is idempotent, also for two at once (a lock file) and after any kill; what a failed
`up` started is stopped again; a service configured by environment is never started here. The
addresses stand in `<home>/stack.json`, readable by their owner alone.
"""

import asyncio
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.db.database import Database
from infra.db.migrate import upgrade
from infra.stack.postgres import Postgres
from infra.stack.temporal import Temporal, answers
from mainspring.errors import MainspringError, ServiceError
from mainspring.settings import STACK_FILE, load_settings

MIN_FREE_BYTES = 300 << 20
"""Postgres and Temporal take about a third of this before any work is stored."""


@dataclass(frozen=True, slots=True)
class StackInfo:
    home: Path
    database_url: str
    temporal_address: str
    temporal_ui: str


@dataclass(frozen=True, slots=True)
class ServiceState:
    service: str
    address: str
    pid: int | None
    """None: not started by the embedded stack, or not running."""
    healthy: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


async def up(home: Path) -> StackInfo:
    """Everything running, healthy and migrated. Raises MainspringErrors naming the service."""
    home = home.absolute()
    _make_home(home)
    with _locked(home):
        configured = load_settings_without_stack(home)
        postgres, temporal = Postgres(home), Temporal(home)
        running = {s.daemon.name for s in (postgres, temporal) if s.daemon.pid() is not None}
        try:
            url = configured.database_url or await asyncio.to_thread(postgres.start)
            await asyncio.to_thread(upgrade, url)
            if not configured.temporal_address:
                await temporal.start()
        except BaseException:
            for service in (temporal, postgres):
                if service.daemon.name not in running:
                    service.stop()
            raise
        info = StackInfo(
            home,
            url,
            configured.temporal_address or temporal.address,
            configured.temporal_ui or temporal.ui,
        )
        _write_stack_file(info)
        return info


async def down(home: Path) -> list[str]:
    """Stop what runs; the names of what was stopped. Data stays."""
    home = home.absolute()
    if not home.exists():
        return []
    with _locked(home):
        services = (Temporal(home), Postgres(home))
        return [s.daemon.name for s in services if await asyncio.to_thread(s.stop)]


async def status(home: Path) -> list[ServiceState]:
    """What runs and answers, for the home folder's stack or the configured services."""
    home = home.absolute()
    settings = load_settings(home)
    return [
        ServiceState(
            "postgres",
            settings.database_url.rpartition("@")[2],
            Postgres(home).daemon.pid(),
            await _database_answers(settings.database_url),
        ),
        ServiceState(
            "temporal",
            settings.temporal_address,
            Temporal(home).daemon.pid(),
            bool(settings.temporal_address) and await answers(settings.temporal_address),
        ),
    ]


def load_settings_without_stack(home: Path):
    """What the environment configures, ignoring what an earlier `up` recorded."""
    settings = load_settings(home)
    recorded = json.loads(settings.stack_file.read_text()) if settings.stack_file.exists() else {}
    cleared = {
        key: ""
        for key in ("database_url", "temporal_address", "temporal_ui")
        if f"MAINSPRING_{key.upper()}" not in os.environ and key in recorded
    }
    return settings.model_copy(update=cleared)


async def _database_answers(url: str) -> bool:
    if not url:
        return False
    try:
        async with Database.open(url, pool_size=1) as database:
            await database.check()
    except MainspringError:
        return False
    return True


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(home).free
    except OSError as error:
        raise ServiceError(
            f"home folder {home} cannot be made: {error.strerror}",
            remedy="give a writable folder with --home or MAINSPRING_HOME",
        ) from None
    if free < MIN_FREE_BYTES:
        raise ServiceError(
            f"the disk of {home} is full: {free >> 20} MB are free, {MIN_FREE_BYTES >> 20} MB are "
            "needed to start",
            remedy="free space, or give a folder on another disk with --home",
        )


def _write_stack_file(info: StackInfo) -> None:
    content = {key: str(value) for key, value in asdict(info).items() if key != "home"}
    staging = info.home / f"{STACK_FILE}.new"
    staging.touch(mode=0o600)
    staging.write_text(json.dumps(content, indent=2) + "\n")
    staging.rename(info.home / STACK_FILE)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One `up` or `down` of a home folder at a time; the lock dies with its holder."""
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
