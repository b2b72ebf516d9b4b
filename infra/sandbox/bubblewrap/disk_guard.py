"""A bound on a sandbox's files together, where no file system has quotas for it.

Invariants: a sandbox over its bound has its commands killed each time it has grown further, within
seconds, and its shell lives on: the agent may look and remove what it wrote. Files that were
deleted and are still held open are not seen. Imported by the bubblewrap backend.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger()

CHECK_S = 3.0
"""Between two looks; a look takes well under a millisecond for the trees of bundled tasks."""


async def guard(find: Callable[[], list[Path]], pid: int, disk_mb: int) -> None:
    """Watch disk use while the sandbox whose first process is `pid` lives; cancel it afterwards.

    `find` tells where its files are now: sandboxes get other names.
    """
    limit = bound = disk_mb << 20
    while True:
        await asyncio.sleep(CHECK_S)
        used = await asyncio.to_thread(_used, find())
        if used > bound:
            num_killed = _kill_commands(pid)
            log.info("a sandbox outgrew its disk_mb", pid=pid, mb=used >> 20, num_killed=num_killed)
            # Written between the look and the kill: the next command is not killed for it.
            used = await asyncio.to_thread(_used, find())
        bound = max(limit, used)


def _used(directories: list[Path]) -> int:
    """Bytes on disk of everything below; hard links count once."""
    total = 0
    seen: set[int] = set()
    left: list[str] = [str(path) for path in directories]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # it is gone, or may not be read
                    stat = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif stat.st_ino in seen:
                        continue
                    elif stat.st_nlink > 1:
                        seen.add(stat.st_ino)
                    total += stat.st_blocks * 512
    return total


def _kill_commands(pid: int) -> int:
    """All but the first process."""
    try:
        doomed = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return 0
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(doomed)
