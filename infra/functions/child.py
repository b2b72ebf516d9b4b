"""The process that calls one function, once: `python -m infra.functions.child DESCRIPTOR PARENT`.

Invariants: it ends with its node's process, whatever the function does (the kernel kills it, and
a thread watches the socket); it tells how the function ended before it exits, and then exits at
once, also when threads of the function still run; what the function prints is its output and never
reaches the socket. Imported by nothing: `process` starts it.
"""

import asyncio
import concurrent.futures
import ctypes
import itertools
import json
import os
import resource
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from typing import Any, NoReturn

from infra.functions.messages import Start, line, of_result
from mainspring.environments.protocol import WorldLost
from mainspring.errors import ConfigError
from mainspring.programs.functions import Ran, Returned, arguments, find_function, returned
from mainspring.tasks.any_task import read_task
from mainspring.words.causes import cause_of, is_out_of_memory

PR_SET_PDEATHSIG = 1
OOM_SCORE = 500
"""When memory runs out the kernel takes the function, not its node."""
CHECK = "check"


class NodeChannel:
    """To the node: messages out, and the answers to commands."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._one_writes = threading.Lock()
        self._numbers = itertools.count()
        self._replies: dict[int, concurrent.futures.Future[dict[str, Any]]] = {}

    def first(self) -> Start:
        return Start.model_validate_json(self._lines.readline())

    def tell(self, fields: dict[str, Any]) -> None:
        with self._one_writes:
            self._connection.sendall(line(fields))

    def ask(self, fields: dict[str, Any]) -> "concurrent.futures.Future[dict[str, Any]]":
        number = next(self._numbers)
        answer = self._replies[number] = concurrent.futures.Future()
        # No cancel reaches it then: the answer comes, whether or not it is still awaited.
        answer.set_running_or_notify_cancel()
        self.tell({**fields, "run": number})
        return answer

    def listen(self) -> NoReturn:
        """In a thread. The end of the socket is the end of the node."""
        for raw in self._lines:
            answer = json.loads(raw)
            self._replies.pop(answer.pop("ran")).set_result(answer)
        os._exit(1)


class ChannelSandbox:
    """Implements `FunctionSandbox`; in any thread and any event loop."""

    def __init__(self, channel: NodeChannel) -> None:
        self._channel = channel

    async def run(self, command: str, *, timeout_s: float | None = None) -> Ran:
        reply = self._channel.ask({"command": command, "timeout_s": timeout_s})
        return Ran(**await asyncio.wrap_future(reply))


def main() -> None:
    if sys.argv[1] == CHECK:
        _check(sys.argv[2])
    _end_with(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # what the function starts must not keep the node waiting
    channel = NodeChannel(connection)
    start = channel.first()
    threading.Thread(target=channel.listen, daemon=True).start()
    _limit(start.memory_mb)
    asyncio.run(_play(start, channel))


async def _play(start: Start, channel: NodeChannel) -> NoReturn:
    end = await _end_of(start, channel)
    # Here, as the end of the loop waits for what the function left running.
    _leave(channel, end)


async def _end_of(start: Start, channel: NodeChannel) -> dict[str, Any]:
    values = {
        "task": read_task(start.task),
        "model_url": start.model_url,
        "key": start.key,
        "sandbox": ChannelSandbox(channel) if start.has_sandbox else None,
        "options": start.options,
        "rollout": start.rollout,
        "life": start.life,
    }
    try:
        function = find_function(start.path)
    except ConfigError as error:  # it is another one than was checked
        return {"failed": f"cannot be called: {error.message}"}
    try:
        value = await function(**arguments(function, values))
    except BaseException as error:  # also SystemExit: only a return ends a function well
        traceback.print_exception(error)
        cause = _single(error)
        if isinstance(cause, WorldLost):
            return {"lost": cause.message}
        memory = "ran out of memory: " if is_out_of_memory(cause) else ""
        return {"failed": f"{memory}raised {cause_of(cause)}{_place(cause)}"}
    try:
        # A task with a repository is judged by that: what the function returns has no meaning.
        return of_result(Returned(b"", "") if start.has_sandbox else returned(value))
    except ValueError as error:
        return {"failed": str(error)}


def _single(error: BaseException) -> BaseException:
    """The one error in a group, as task groups raise it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        [error] = error.exceptions
    return error


def _place(error: BaseException) -> str:
    """Where in code that is no library's."""
    library = sysconfig.get_path("stdlib")
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith(library)
        and frame.filename != __file__
    ]
    return f" (at {own[-1].filename}:{own[-1].lineno})" if own else ""


def _leave(channel: NodeChannel, end: dict[str, Any]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # the function closed it
    channel.tell(end)
    os._exit(0 if "returned" in end else 1)


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def _limit(memory_mb: int) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    num_bytes = memory_mb << 20
    most = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _check(path: str) -> NoReturn:
    """Whether this machine can call the function, on standard output: empty, or the problem."""
    try:
        find_function(path)
        problem = ""
    except ConfigError as error:
        problem = error.message
    sys.stdout.flush()
    os.write(1, f"\0{problem}".encode(errors="replace"))
    os._exit(0)


if __name__ == "__main__":
    main()
