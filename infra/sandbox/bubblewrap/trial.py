"""Whether root can give sandboxes a user namespace on this machine: found out with one of them.

A container may hide a part of /proc or forbid namespaces; then root's sandboxes run without one,
under the id that they have outside. Imported by the bubblewrap backend.
"""

import asyncio
import contextlib
import os
import shutil
import uuid
from pathlib import Path

import psutil
import structlog

from infra.process_start import is_same, start_of
from infra.sandbox.bubblewrap.command import Bind
from infra.sandbox.bubblewrap.owner import owner_of
from infra.sandbox.bubblewrap.process import (
    SPAWN_TIMEOUT_S,
    ConfinedShell,
    NoProcess,
    kill_leftover,
)

_NAME = "trial-"
"""Then the number and the start of the process that tries, and what tells two of them apart."""

log = structlog.get_logger()


class Trial:
    def __init__(self, directory: Path, etc: Bind) -> None:
        """`directory`: for what the trial writes; made when it is needed."""
        self._directory = directory
        self._etc = etc
        self._trying = asyncio.Lock()
        self._outcome: bool | None = None

    async def may_map(self) -> bool:
        """Tried once."""
        async with self._trying:
            if self._outcome is None:
                self._outcome = os.geteuid() == 0 and await self._try()
            return self._outcome

    async def _try(self) -> bool:
        await self._clear_left()
        pid = os.getpid()
        home = self._directory / f"{_NAME}{pid}-{start_of(pid)}-{uuid.uuid4().hex}"
        home.mkdir(parents=True)
        owner = owner_of("trial", is_mapped=True)
        try:
            shell = await ConfinedShell.spawn(home, owner, [self._etc], tmp_mb=1)
            try:
                message = await shell.only(b"id -u\nexit\n", SPAWN_TIMEOUT_S)
            finally:
                await shell.kill()
        except (NoProcess, TimeoutError) as error:
            message = str(error).encode()
        finally:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(home)
        worked = message.strip() == b"%d" % owner.inside
        if not worked:
            log.warning(
                "sandboxes run without a user namespace; `id` shows an id of the node",
                reason=message.decode(errors="replace").strip(),
            )
        return worked

    async def _clear_left(self) -> None:
        """End trials of processes that were killed in the middle: a sandbox outlives who started
        it."""
        for home in self._directory.glob(f"{_NAME}*"):
            if not _is_tried(home.name):
                await kill_leftover(home)
                shutil.rmtree(home, ignore_errors=True)


def _is_tried(name: str) -> bool:
    """Whether the process that made this folder lives."""
    pid, _, rest = name.removeprefix(_NAME).partition("-")
    start = rest.rpartition("-")[0]
    try:
        return bool(start) and pid.isdecimal() and is_same(int(pid), start)
    except (psutil.NoSuchProcess, ValueError):
        return False
