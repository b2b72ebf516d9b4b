"""The home folder of one embedded stack: what lies where, and one change of it at a time.

stack.json            addresses and password, for its owner alone; read by `load_settings`
postgres/             the database cluster, or a link to it: see `infra.stack.postgres_server`
postgres.password     for its owner alone
temporal.db           Temporal's database
logs/<service>.log    what the services print
run/                  pids and ports
lock                  held by a running `up` or `down`; made by whom the home belongs to
restoring             there while a backup is restored: what lies here is not whole
"""

import asyncio
import fcntl
import json
import os
import pwd
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from mainspring.config.settings import STACK_FILE
from mainspring.errors import ServiceError, UsageError

MIN_FREE_BYTES = 300 << 20
"""Postgres and Temporal take about a third of this before any work is stored."""
LOCK_TIMEOUT_S = 300.0
"""Longer than the slowest `up`: both services recovering from a crash on a slow disk."""
POLL_S = 0.1
RESTORING = "restoring"


def make(home: Path) -> None:
    """Raises ServiceError when it cannot be made or belongs to someone else."""
    try:
        (home / "run").mkdir(parents=True, exist_ok=True)
        (home / "logs").mkdir(exist_ok=True)
        (home / "lock").touch()
        owner = (home / "lock").stat().st_uid
    except OSError as error:
        raise ServiceError(
            f"home folder {home} cannot be used: {error.strerror}",
            remedy="give a writable folder with --home or MAINSPRING_HOME",
        ) from None
    if owner != os.geteuid():
        raise UsageError(
            f"home folder {home} was made by {_user(owner)} and this is {_user(os.geteuid())}: "
            "files of both would not fit together",
            remedy=f"run as {_user(owner)}, or give another folder with --home",
        )


def refuse_half_restored(home: Path) -> None:
    """Raises UsageError while a backup is restored into it, or after that was interrupted."""
    if (home / RESTORING).exists():
        raise UsageError(
            f"home folder {home} is half restored from a backup",
            remedy="wait for `mainspring restore`, or repeat it where it was interrupted",
        )


def check_space(folder: Path) -> None:
    """Raises ServiceError when the disk of `folder` has no room for a service to start."""
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise ServiceError(
            f"the disk of {folder} is full: {free >> 20} MB are free, {MIN_FREE_BYTES >> 20} MB "
            "are needed to start",
            remedy="free space, or give a folder on another disk with --home",
        )


def write_private(path: Path, content: str) -> None:
    """All of it or nothing, and never readable by others."""
    staging = path.with_name(f"{path.name}.new")
    staging.unlink(missing_ok=True)
    with open(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staging.rename(path)


def record(home: Path, addresses: dict[str, str]) -> None:
    write_private(home / STACK_FILE, json.dumps(addresses, indent=2) + "\n")


def recorded_port(home: Path, key: str) -> int | None:
    """The port of the address under `key` that the last complete `up` told everyone; None: there
    was none, or it is damaged and cannot have been read."""
    try:
        address = json.loads((home / STACK_FILE).read_text())[key]
        return urlsplit(address if "//" in address else f"//{address}").port
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@asynccontextmanager
async def locked(home: Path) -> AsyncIterator[None]:
    """One `up` or `down` of a home folder at a time; the lock dies with its holder."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with (home / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"another `mainspring up` or `down` has held {home / 'lock'} for "
                        f"{LOCK_TIMEOUT_S:.0f} s",
                        remedy="stop that command, then repeat this one",
                    ) from None
                await asyncio.sleep(POLL_S)
        yield


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
