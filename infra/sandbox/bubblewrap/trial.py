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

import structlog

from infra.sandbox.bubblewrap.command import Bind
from infra.sandbox.bubblewrap.owner import owner_of
from infra.sandbox.bubblewrap.process import SPAWN_TIMEOUT_S, ConfinedShell, NoProcess

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
        home = self._directory / f"trial-{uuid.uuid4().hex}"
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
