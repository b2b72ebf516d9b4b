"""Which process is a node: the one that holds the lock on a file of the home.

Invariants: of all processes with one home and one node id, one opens and reaps sandboxes; a home is
one node's, since another one would take its sandboxes for abandoned ones, from another host as
well; the kernel frees the locks when that process ends, whatever ended it; the process that has
waited longest is the next one. A node that stops can tell whether another process waits to take
over what it holds. Used by the sandbox worker, and by commands that ask whether a node runs.
"""

import fcntl
import os
import socket
from pathlib import Path
from urllib.parse import quote

from mainspring.errors import UsageError
from mainspring.ids import NodeId

FOLDER = "nodes"
HOME_LOCK = "home.taken"
"""Ends otherwise than a node's lock, whatever its id."""


class NodeLock:
    def __init__(self, home: Path, node: NodeId) -> None:
        folder = home / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        name = quote(node, safe="")
        self._lock = folder / f"{name}.lock"
        self._turn = folder / f"{name}.next"
        self._home = folder / HOME_LOCK
        self._node = node
        self._held: int | None = None

    def take_at_once(self) -> bool:
        """False when another process is the node."""
        fd = _open(self._lock)
        if not _try(fd):
            os.close(fd)
            return False
        self._hold(fd)
        return True

    def wait(self) -> None:
        """Returns when this process is the node; signals end it as ever."""
        turn = _open(self._turn)
        fcntl.flock(turn, fcntl.LOCK_EX)
        fd = _open(self._lock)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._hold(fd)
        os.close(turn)

    def take_home(self) -> None:
        """After the lock: no other node works in this home until this process ends. Raises
        UsageError."""
        fd = _open(self._home)
        if not _try(fd):
            owner = self._home.read_text()
            os.close(fd)
            raise UsageError(
                f"{self._home.parent.parent} is the home of {owner}, and this is node "
                f"{self._node}: each would remove the other's sandboxes",
                remedy="give this node a home of its own on a local disk: --home DIR, or "
                "MAINSPRING_HOME",
            )
        text = f"node {self._node} (pid {os.getpid()} on {socket.gethostname()})"
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)

    def is_held(self) -> bool:
        """Whether some process is the node."""
        return _is_locked(self._lock)

    def is_awaited(self) -> bool:
        """Whether another process waits to be the node next."""
        return _is_locked(self._turn)

    def holder(self) -> int | None:
        """The process that is or was the node last."""
        try:
            return int(self._lock.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _hold(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._held = fd


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_locked(path: Path) -> bool:
    # A shared lock, so that two that look at once do not see each other.
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
