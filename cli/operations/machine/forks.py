"""Members of a fleet that are forked from a process with their imports done (`fork_server`).

Invariants: the fork server is started when it is first needed and again after it ended; with it
all its members end (they drain first), which their owner sees as an end of each; none is left
when `close` returns. A fork server that ends by itself before it serves is an error, since what it
could not import its members could not either.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import psutil

from cli.operations.machine.fork_request import Request, die_with_parent
from cli.operations.machine.process_ends import LifeBegun
from mainspring.errors import WorkFailed

LOOK_S = 0.1
"""Between two looks at members whose fork server ended."""
DRAIN_S = 40.0
"""As a fleet gives its members when it stops them."""
TRIES = 3
"""Fork servers that are started when each is killed before it has answered."""


SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Set in every fork server, whatever the user has set: numpy starts a thread for each processor."""


class ForkServerLost(Exception):
    """It ended before it answered."""


class Forked:
    """A member, as `asyncio.subprocess.Process` shows those that are started otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._over = asyncio.Event()
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess:  # its end is on its way
            self._process = None

    async def wait(self) -> int:
        await self._over.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.send_signal(number)

    def end(self, code: int) -> None:
        self.returncode = code
        self._over.set()

    async def end_alone(self) -> None:
        """When there is no fork server to tell: it has its SIGTERM, and time to drain."""
        looks = round(DRAIN_S / LOOK_S)
        while self._lives():
            if looks == 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            looks -= 1
            await asyncio.sleep(LOOK_S)
        self.end(-signal.SIGTERM)

    def _lives(self) -> bool:
        try:
            if self._process is None or not self._process.is_running():
                return False
            return self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class _ForkServer:
    """One life of it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.process = process
        self._reader, self._writer = streams
        self._answers: dict[int, asyncio.Future[Forked]] = {}
        self._members: dict[int, Forked] = {}
        self._reading: asyncio.Task[None] | None = None
        self.is_over = True
        """Whether it answers nothing: it has not begun, or it ended."""

    async def is_ready(self) -> bool:
        """Whether it serves; False when it ended before."""
        if not await self._line():
            return False
        self.is_over = False
        self._reading = asyncio.create_task(self._read())
        return True

    async def fork(self, request: Request) -> Forked:
        """Raises ForkServerLost."""
        if self.is_over:
            raise ForkServerLost
        answer = self._answers[request.number] = asyncio.get_running_loop().create_future()
        self._writer.write(request.line())
        return await answer

    async def close(self) -> None:
        self._writer.close()
        await self.process.wait()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        while line := await self._line():
            event = json.loads(line)
            if "number" in event:
                member = self._members[event["pid"]] = Forked(event["pid"])
                answer = self._answers.pop(event["number"])
                if not answer.cancelled():
                    answer.set_result(member)
            else:
                self._members.pop(event["pid"]).end(event["code"])
        self.is_over = True
        for answer in self._answers.values():
            if not answer.cancelled():
                answer.set_exception(ForkServerLost())
        await asyncio.gather(*(member.end_alone() for member in self._members.values()))

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""


class Forks:
    def __init__(self, modules: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """`modules` are imported under `environment`: libraries read some variables only then."""
        self._modules = modules
        self._environment = environment
        self._log = log
        self._server: _ForkServer | None = None
        self._life = LifeBegun.now(log)
        self._starting = asyncio.Lock()
        self._numbers = count()

    @property
    def pid(self) -> int | None:
        """Its fork server's, while that serves."""
        server = self._server
        return None if server is None or server.is_over else server.process.pid

    async def start(self, arguments: list[str], environment: dict[str, str], log: Path) -> Forked:
        """`mainspring` with these arguments. Raises WorkFailed."""
        request = Request(
            next(self._numbers), arguments, {**os.environ, **environment}, str(log.absolute())
        )
        code = 0
        for _ in range(TRIES):
            server = await self._serving()
            with contextlib.suppress(ForkServerLost):
                return await server.fork(request)
            code = await server.process.wait()
        raise self._failed(f"ended {TRIES} times before it started a process", code)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _serving(self) -> _ForkServer:
        async with self._starting:
            code = 0
            for _ in range(TRIES):
                if self._server is not None and not self._server.is_over:
                    return self._server
                self._server = await self._begin()
                if await self._server.is_ready():
                    return self._server
                code = await self._server.process.wait()
                if code >= 0:
                    raise self._failed("ended before it served", code)
            raise self._failed(f"was killed {TRIES} times while it started", code)

    async def _begin(self) -> _ForkServer:
        self._life = LifeBegun.now(self._log)
        own_end, server_end = socket.socketpair()
        with server_end, self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "cli.fork_server",
                str(server_end.fileno()),
                *self._modules,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment, **SINGLE_THREADED},
                pass_fds=[server_end.fileno()],
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        return _ForkServer(process, await asyncio.open_unix_connection(sock=own_end))

    def _failed(self, what: str, code: int) -> WorkFailed:
        end = self._life.ended("the fork server", code)
        return WorkFailed(
            f"{end.cause}: {end.name} {what} ({end.how}); its log is {end.log}",
            remedy="fix what the log names, then repeat the command to resume",
        )
