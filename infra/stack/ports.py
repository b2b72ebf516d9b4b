"""Ports on the loopback interface, and which of them the services of one stack get."""

import random
import socket
from dataclasses import dataclass

import psutil

from mainspring.errors import ServiceError, UsageError

LOOPBACK = "127.0.0.1"
TRIES = 100
_PERMANENT = range(15000, 32768)
"""Above the well-known ones, below Linux's usual ip_local_port_range."""
_COMMAND_CHARS = 120


@dataclass(frozen=True, slots=True)
class Forced:
    """Ports that a person insists on; None: the usual one, or a free one."""

    postgres: int | None = None
    temporal: int | None = None
    ui: int | None = None


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(service: str, forced: int | None, recorded: int | None, usual: int, option: str) -> int:
    """`forced`, else `recorded`, or nothing: workers and links have the recorded one. On a first
    start `usual` when it is free, else another one.

    Raises UsageError when `forced` is taken, ServiceError when `recorded` is.
    """
    port = forced or recorded or usual
    if is_free(port):
        return port
    problem = f"{service}: port {port} of {LOOPBACK} is in use by {holder(port)}"
    if forced:
        raise UsageError(
            problem, remedy="stop that process, or leave the port out and a free one is chosen"
        )
    if recorded:
        raise ServiceError(
            f"{problem}; it is the port that this home's workers know",
            remedy=f"stop that process, or move with `mainspring up {option} PORT`: running "
            "workers follow",
        )
    return pick()


def holder(port: int) -> str:
    """Which process listens at `port`, as far as we may see."""
    try:
        listening = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        listening = []
    for connection in listening:
        if (
            connection.laddr
            and connection.laddr.port == port
            and connection.status == psutil.CONN_LISTEN
        ):
            if connection.pid is None:
                break
            try:
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                command = ""
            shown = command if len(command) <= _COMMAND_CHARS else f"{command[:_COMMAND_CHARS]}..."
            return f"process {connection.pid}" + (f" ({shown})" if shown else "")
    return "another process"


def pick() -> int:
    """A free port, likely to be free again when its service restarts: none that the kernel gives to
    outgoing connections, of which there are thousands."""
    for port in random.SystemRandom().sample(_PERMANENT, TRIES):
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def check_unchanged(service: str, forced: int | None, port: int) -> None:
    """Raises UsageError when a running service would have to move."""
    if forced not in (None, port):
        raise UsageError(
            f"{service} already runs on port {port}, not {forced}",
            remedy="run `mainspring down` first: a running service cannot change its port",
        )
