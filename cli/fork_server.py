"""The process from which members of a fleet are forked: their imports are done once, here.

    python -m cli.fork_server DESCRIPTOR MODULE...

Imports the modules, then forks a member for each request that comes through the socket DESCRIPTOR
and reports how it ended. Invariants: it has one thread, as locks that another one holds would stay
locked in a member, and it refuses to serve otherwise; a member has its own session, log
and environment, and gets SIGTERM when this process ends; this process ends when its fleet does.
Started by `cli.operations.machine.forks`; members continue in `cli.main`.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from setproctitle import getproctitle, setproctitle

from cli.main import main as mainspring
from cli.operations.machine.fork_request import Request, die_with_parent


def serve(link: socket.socket) -> None:
    """Returns in each member, and never in this process."""
    woken, wakes = os.pipe()
    for descriptor in (woken, wakes):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _say(link, ready=True)
    unread = b""
    while True:
        readable, _, _ = select.select([link, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            for pid, code in _ended():
                _say(link, pid=pid, code=code)
        if link not in readable:
            continue
        received = link.recv(1 << 16)
        if not received:
            os._exit(0)  # the fleet has ended; the members hear of it by their death signal
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            request, parent = Request(**json.loads(line)), os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wakes)
                link.close()
                _become(request, parent)
                return
            _say(link, number=request.number, pid=pid)


def _become(request: Request, parent: int) -> None:
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:  # it ended before the death signal was set
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.environ.clear()
    os.environ.update(request.environment)
    words = [sys.executable, "-m", "mainspring", *request.arguments]
    sys.orig_argv[:] = words  # what a worker whose services moved starts again as
    sys.argv[:] = ["mainspring", *request.arguments]
    setproctitle(" ".join(words))


def _ended() -> list[tuple[int, int]]:
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def _say(link: socket.socket, **fields: int) -> None:
    link.sendall(json.dumps(fields).encode() + b"\n")


def main(link: socket.socket, modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        sys.exit(f"{', '.join(modules)} started {threads - 1} threads: no process can be forked")
    getproctitle()  # finds where titles go by the environment, which a member replaces
    gc.collect()
    gc.freeze()  # a collection in a member would copy all pages
    serve(link)
    mainspring()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
