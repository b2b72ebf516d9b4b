"""One bwrap process with bash inside, and the two named pipes to it.

Invariants: it lives until `kill`, or until it has heard nothing for shell.ORPHAN_S, whatever
becomes of the process that spawned it; a process that finds its directory can resume it (`adopt`)
or end it (`kill_leftover`); after either kill no process of the sandbox runs. Imported by the
bubblewrap backend.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from infra.process_start import is_same, start_of
from infra.sandbox.bubblewrap.command import Bind, BwrapDescriptors, command_line, filter_fds
from infra.sandbox.bubblewrap.owner import Owner
from infra.sandbox.protocol import SandboxLost
from infra.sandbox.shell.channel import CHANNEL_BYTES, Shell

SPAWN_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_PIPES = ("input", "output")


class NoProcess(Exception):
    """There is no such process any more, or it never got as far as running."""


@dataclass(frozen=True, slots=True)
class FirstProcess:
    """Process 1 of the sandbox as the host sees it: the kernel ends all others with it."""

    pid: int
    created: str | float
    """Its start; a number in the record of an older version."""

    @classmethod
    def of(cls, pid: int) -> Self:
        try:
            return cls(pid, start_of(pid))
        except psutil.NoSuchProcess as error:
            raise NoProcess(str(error)) from None

    @classmethod
    def load(cls, directory: Path) -> Self:
        """As `save` left it. Raises NoProcess."""
        try:
            return cls(**json.loads(_record(directory).read_text()))
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise NoProcess(str(error)) from None

    def save(self, directory: Path) -> None:
        _record(directory).write_text(json.dumps(asdict(self)))

    async def kill(self) -> None:
        """Raises SandboxLost when the kernel does not end it."""
        with contextlib.suppress(NoProcess), self.held() as fd:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await _ready(fd)
            except TimeoutError:
                raise SandboxLost(
                    f"process {self.pid} of a sandbox does not die",
                    remedy="look for processes in uninterruptible sleep on this node",
                ) from None

    @contextmanager
    def held(self) -> Iterator[int]:
        """A descriptor of just this process, while its number may go to another. Raises
        NoProcess."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise NoProcess(f"process {self.pid} has ended") from None
        try:
            try:
                same = is_same(self.pid, self.created)
            except psutil.NoSuchProcess as error:
                raise NoProcess(str(error)) from None
            if not same:
                raise NoProcess(f"process {self.pid} is another one now")
            yield fd
        finally:
            os.close(fd)


class ConfinedShell:
    """Made by `spawn` or `adopt`."""

    def __init__(
        self,
        first: FirstProcess,
        input_fd: int,
        output: tuple[asyncio.StreamReader, asyncio.ReadTransport],
        bwrap: Process | None = None,
    ) -> None:
        self._first = first
        self._input_fd = input_fd
        reader, self._output = output
        self._bwrap = bwrap
        self._reader = reader
        self.shell = Shell(reader, self._send)

    @property
    def pid(self) -> int:
        """Pid of its first process, as the host counts."""
        return self._first.pid

    async def find_pid(self) -> int:
        """The same, while it lives. Raises SandboxLost."""
        try:
            with self._first.held():
                return self._first.pid
        except NoProcess as gone:
            raise SandboxLost(f"its sandbox is gone: {gone}") from None

    async def interrupt(self) -> None:
        """Nothing where it has ended."""
        with contextlib.suppress(NoProcess, ProcessLookupError), self._first.held() as fd:
            signal.pidfd_send_signal(fd, signal.SIGUSR1)

    @classmethod
    async def spawn(
        cls, directory: Path, owner: Owner, binds: list[Bind], tmp_mb: int, program: str = "bash"
    ) -> Self:
        """`directory`, out of the sandbox's sight, gets its pipes and its record. Raises NoProcess
        with what bwrap said."""
        for name in _PIPES:
            os.mkfifo(directory / name, 0o600)
        info_read, info_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # If this process dies, bwrap reads the end of it and fails: nothing runs without a map.
        mapped_read, mapped_write = os.pipe2(os.O_CLOEXEC)
        # Both directions for the shell itself: its pipes never end, whatever closes our ends.
        inner = [os.open(directory / name, os.O_RDWR | os.O_CLOEXEC) for name in _PIPES]
        try:
            input_fd, output = await _open_pipes(directory)
            with filter_fds() as filters:
                bash = [program, "--noprofile", "--norc"]
                descriptors = BwrapDescriptors(info_write, mapped_read)
                bwrap = await asyncio.create_subprocess_exec(
                    *command_line(owner, binds, tmp_mb, bash, filters, descriptors),
                    stdin=inner[0],
                    stdout=inner[1],
                    stderr=subprocess.STDOUT,
                    pass_fds=(info_write, mapped_read, *filters),
                    env={"PATH": os.defpath},
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            os.close(info_read)
            os.close(mapped_write)
            raise
        finally:
            for fd in (info_write, mapped_read, *inner):
                os.close(fd)
        try:
            try:
                first = await _first_process(info_read)
                if first is not None and owner.is_mapped:
                    _map_ids(owner, first, mapped_write)
            finally:
                os.close(mapped_write)
            if first is None:
                message = await output[0].read()
                raise NoProcess(message.decode(errors="replace").strip())
            first.save(directory)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                bwrap.kill()
            os.close(input_fd)
            output[1].close()
            raise
        return cls(first, input_fd, output, bwrap)

    @classmethod
    async def adopt(cls, directory: Path) -> Self:
        """The one another process spawned there. Raises NoProcess."""
        first = FirstProcess.load(directory)
        with first.held():
            try:
                return cls(first, *await _open_pipes(directory))
            except OSError as error:
                raise NoProcess(str(error)) from None

    async def only(self, lines: bytes, timeout_s: float) -> bytes:
        """Have the shell run `lines`, the last of which ends it; gives all it wrote."""
        assert self._bwrap is not None, "spawned by this process"
        await self._send(lines)
        async with asyncio.timeout(timeout_s):
            await self._bwrap.wait()
        # Our end of the pipe is open for reading alone: with the shell's end it is over.
        return await self._reader.read()

    async def kill(self) -> None:
        await self._first.kill()
        if self._input_fd >= 0:
            os.close(self._input_fd)
            self._input_fd = -1
        self._output.close()
        if self._bwrap is not None:
            await self._bwrap.wait()

    async def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._input_fd, left) :]
            except BlockingIOError:
                await _ready(self._input_fd, for_writing=True)


async def kill_leftover(directory: Path) -> None:
    """End what another process spawned there. Raises SandboxLost when the kernel does not."""
    try:
        await FirstProcess.load(directory).kill()
    except NoProcess:
        # Its spawner died between starting it and writing that down.
        for process in psutil.process_iter(["cmdline"]):
            if any(part.startswith(f"{directory}/") for part in process.info["cmdline"] or ()):
                for child in process.children():
                    with contextlib.suppress(NoProcess):
                        await FirstProcess.of(child.pid).kill()


async def _open_pipes(
    directory: Path,
) -> tuple[int, tuple[asyncio.StreamReader, asyncio.ReadTransport]]:
    input_fd, output_fd = (
        os.open(directory / name, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        for name, flags in zip(_PIPES, (os.O_WRONLY, os.O_RDONLY), strict=True)
    )
    reader = asyncio.StreamReader(limit=CHANNEL_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output_fd, "rb", buffering=0)
    )
    return input_fd, (reader, transport)


async def _first_process(info_fd: int) -> FirstProcess | None:
    """bwrap writes it before it runs anything inside; None: it ended without."""
    info = b""
    try:
        async with asyncio.timeout(SPAWN_TIMEOUT_S):
            while not info.rstrip().endswith(b"}"):  # to the end: a closed pipe would kill bwrap
                await _ready(info_fd)
                piece = os.read(info_fd, 4096)
                if not piece:
                    return None
                info += piece
    finally:
        os.close(info_fd)
    return FirstProcess.of(json.loads(info)["child-pid"])


def _map_ids(owner: Owner, first: FirstProcess, mapped_fd: int) -> None:
    try:
        owner.map_ids(first.pid)
    except OSError as error:
        raise NoProcess(f"its user ids cannot be mapped: {error}") from error
    with contextlib.suppress(BrokenPipeError):  # bwrap has ended: its output tells why
        os.write(mapped_fd, b".")


async def _ready(fd: int, *, for_writing: bool = False) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = loop.add_reader, loop.remove_reader
    if for_writing:
        add, remove = loop.add_writer, loop.remove_writer
    add(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(fd)


def _record(directory: Path) -> Path:
    return directory / "process.json"
