"""One bwrap process with bash inside, and the pipes to it.

Invariant: after `kill` returns no process of the sandbox runs, so its files can be deleted. Must be
spawned on the event loop's thread: bwrap dies with the *thread* that started it. Imported by the
bubblewrap backend.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from asyncio.subprocess import Process
from typing import Self

import psutil

from infra.sandbox.confinement import Bind, command_line, filter_fds
from infra.sandbox.shell import CHANNEL_BYTES, Shell


class ConfinedShell:
    def __init__(self, process: Process, info_fd: int, lifeline: tuple[int, int]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._info_fd = info_fd
        self._first_pid: int | None = None
        self.lifeline_fd, self._held_fd = lifeline
        """What the shell is told, and our end: the kernel closes it however this process ends.

        bwrap's own --die-with-parent does not reach a process that gave up root.
        """
        self.shell = Shell(process.stdout, self._send)

    @classmethod
    async def spawn(cls, uid: int | None, binds: list[Bind], tmp_mb: int) -> Self:
        info_read, info_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        lifeline_read, lifeline_write = os.pipe2(os.O_CLOEXEC)
        try:
            with filter_fds() as filters:
                bash = ["bash", "--noprofile", "--norc"]
                process = await asyncio.create_subprocess_exec(
                    *command_line(uid, binds, tmp_mb, bash, filters, info_write),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    limit=CHANNEL_BYTES,
                    pass_fds=(info_write, lifeline_read, *filters),
                    env={"PATH": os.defpath},
                    cwd="/",
                )
        except BaseException:
            os.close(info_read)
            os.close(lifeline_write)
            raise
        finally:
            os.close(info_write)
            os.close(lifeline_read)
        return cls(process, info_read, (lifeline_read, lifeline_write))

    def identity(self) -> dict[str, float]:
        """Process 1 of the sandbox as the host sees it; call once the shell has answered."""
        first = psutil.Process(self._learn_first_pid() or self._process.pid)
        return {"pid": first.pid, "created": first.create_time()}

    async def kill(self) -> None:
        first = self._learn_first_pid()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # The kernel ends a pid namespace with its process 1, and bwrap waits for that;
                # killing bwrap itself would leave the others a moment.
                if first is None:
                    self._process.kill()
                else:
                    os.kill(first, signal.SIGKILL)
        self._stdin.close()
        if self._held_fd >= 0:
            os.close(self._held_fd)
            self._held_fd = -1
        await self._process.wait()

    def _learn_first_pid(self) -> int | None:
        """bwrap writes it before it runs anything inside, so an answering shell implies it."""
        if self._info_fd >= 0:
            with contextlib.suppress(BlockingIOError, ValueError, KeyError):
                self._first_pid = json.loads(os.read(self._info_fd, 4096))["child-pid"]
            os.close(self._info_fd)
            self._info_fd = -1
        return self._first_pid

    async def _send(self, data: bytes) -> None:
        self._stdin.write(data)
        await self._stdin.drain()
