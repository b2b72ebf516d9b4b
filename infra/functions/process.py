"""One call of a function in a process of its own: started, served, ended with all that it started.

Invariants: the process has none of the node's variables but those of VARIABLES and those that the
campaign names; it ends with this process; when the block that started it is left, no process that
carries its label is left. Commands of the function run once each, where the caller has them run.
Used by the activity that runs programs.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.functions.labelled import LABEL, kill_labelled
from infra.functions.messages import LINE_BYTES, Start, line, result_in
from mainspring.config.registry import search_own_folders
from mainspring.environments.protocol import CommandResult, WorldLost
from mainspring.programs.functions import Returned
from mainspring.words.causes import memory_kills

VARIABLES = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
)
_LOOPBACK = "localhost,127.0.0.1,::1"
QUIET = {
    # A proxy is not for the model.
    "NO_PROXY": _LOOPBACK,
    "no_proxy": _LOOPBACK,
    # One core each, and the same order of sets in each life.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}
MODULE = "infra.functions.child"
OUTPUT_BYTES = 32 << 10
"""Kept of what it prints: the end."""
EXIT_S = 5.0
"""Between the message of its end and its end."""
REST_S = 1.0
"""For output that a process, killed by now, had written."""
CHECK_TIMEOUT_S = 25.0

RunCommand = Callable[[int, str, float | None], Awaitable[CommandResult]]
"""A function's commands have numbers from 0."""


@dataclass(frozen=True, slots=True)
class FunctionEnd:
    returncode: int
    """0: it returned; negative: the signal that ended it."""
    result: Returned | None = None
    error: str = ""
    """How it ended when it did not return."""


class FunctionProcess:
    """Made by `running`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        printed: asyncio.StreamReader,
        label: str,
        run_command: RunCommand | None,
    ) -> None:
        self._process = process
        self._label = label
        self._reader, self._writer = streams
        self._run_command = run_command
        self._commands: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[FunctionEnd] = asyncio.get_running_loop().create_future()
        """Fails with what a command failed with."""
        self._output = bytearray()
        self._memory_kills = memory_kills()
        self._draining = asyncio.create_task(self._drain(printed))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> FunctionEnd:
        """How the function ended. Raises WorldLost when it or its sandbox is to have another
        life, and what a command raised."""
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait((reading, self._broken), return_when=asyncio.FIRST_COMPLETED)
            return await (self._broken if self._broken.done() else reading)
        finally:
            reading.cancel()

    async def output(self) -> str:
        """The end of what it printed, once it was killed or has ended."""
        await asyncio.wait((self._draining,), timeout=REST_S)
        return self._output.decode(errors="replace")

    async def close(self) -> None:
        """End it, with all that it started. Closing twice is fine."""
        for command in self._commands:
            command.cancel()
        if self._broken.done():
            self._broken.exception()  # whether or not it was looked at
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(kill_labelled, self._label)
        await self._process.wait()
        self._writer.transport.abort()

    async def _read(self) -> FunctionEnd:
        while True:
            try:
                raw = await self._reader.readline()
            except ConnectionError:  # it was killed before it had read all that it was told
                raw = b""
            except ValueError as error:
                return FunctionEnd(1, error=f"told its node what cannot be read: {error}")
            if not raw.endswith(b"\n"):
                code = await self._process.wait()
                is_short = code == -signal.SIGKILL and memory_kills() != self._memory_kills
                return FunctionEnd(code or 1, error=_ended_by_itself(code, is_short))
            fields = json.loads(raw)
            if "command" not in fields:
                break
            running = asyncio.create_task(self._run(fields))
            self._commands.add(running)
            running.add_done_callback(self._commands.discard)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await self._process.wait()
        if "lost" in fields:
            raise WorldLost(fields["lost"])
        if "failed" in fields:
            return FunctionEnd(1, error=fields["failed"])
        return FunctionEnd(0, result_in(fields))

    async def _run(self, fields: Mapping[str, Any]) -> None:
        try:
            assert self._run_command is not None, "a command without a sandbox"
            ran = await self._run_command(fields["run"], fields["command"], fields["timeout_s"])
        except Exception as error:
            if not self._broken.done():
                self._broken.set_exception(error)
            return
        answer = {
            "ran": fields["run"],
            "returncode": ran.returncode,
            "output": ran.output.decode(errors="replace"),
            "timed_out": ran.timed_out,
            "truncated": ran.truncated,
        }
        with contextlib.suppress(ConnectionError):  # it ended meanwhile
            self._writer.write(line(answer))
            await self._writer.drain()

    async def _drain(self, printed: asyncio.StreamReader) -> None:
        while piece := await printed.read(OUTPUT_BYTES):
            self._output += piece
            del self._output[:-OUTPUT_BYTES]


@asynccontextmanager
async def running(
    start: Start,
    variables: Sequence[str],
    label: str,
    folder: Path,
    run_command: RunCommand | None = None,
) -> AsyncIterator[FunctionProcess]:
    """The function's process, while the block runs. `label`: its own, as `labelled.label_of` makes
    it; `folder`: where its working folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    # Not asyncio's own pipe: the wait for a process would last until its children let go of it.
    output, print_into = map(os.fdopen, os.pipe(), ("rb", "wb"))
    try:
        with theirs, print_into:
            printed = asyncio.StreamReader()
            output_pipe, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(printed), output
            )
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=print_into,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd=scratch,
                env=environment_of(variables) | {LABEL: label, "TMPDIR": str(scratch)},
            )
        streams = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
        function = FunctionProcess(process, streams, printed, label, run_command)
        try:
            # One that died at once is noticed when its end is read.
            with contextlib.suppress(ConnectionError):
                function._writer.write(line(start.model_dump(mode="json")))
                await function._writer.drain()
            yield function
        finally:
            await asyncio.shield(function.close())
            # It closes by itself, unless what left the label behind still holds it.
            loop.call_later(REST_S, output_pipe.close)
    finally:
        ours.close()
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def problem_of(path: str) -> str:
    """Why this machine cannot call the function, found out in a process of its own; empty: it can.
    A module that takes long to import would hold up this one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", MODULE, "check", path),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment_of(()),
    )
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return f"function {path!r} could not be imported within {CHECK_TIMEOUT_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    _, mark, problem = output.partition(b"\0")
    if not mark:
        return f"function {path!r} ended the process that imported it ({process.returncode})"
    return problem.decode(errors="replace")


def environment_of(variables: Sequence[str]) -> dict[str, str]:
    """Variables of a function's process, beside its label and its folder."""
    passed = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    own_variables = {name: os.environ[name] for name in variables if name in os.environ}
    # What this process can import the function's can, too.
    search_own_folders()
    search = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return passed | QUIET | own_variables | {"PYTHONPATH": search}


def _ended_by_itself(code: int, is_short_of_memory: bool) -> str:
    if is_short_of_memory:
        return "ran out of memory: the kernel ended it (signal 9)"
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended its process with exit code {code} before it returned"
