"""Ports on the loopback interface, and which of them the services of one stack get."""

import random
import socket
from dataclasses import dataclass

from mainspring.errors import UsageError

LOOPBACK = "127.0.0.1"
TRIES = 100
_PERMANENT = range(15000, 32768)
"""Above the well-known ones, below Linux's usual ip_local_port_range."""


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


def choose(service: str, forced: int | None, preferred: int) -> int:
    """`forced` or nothing; else `preferred` when it is free, else another one.

    Raises UsageError when `forced` is taken.
    """
    port = forced or preferred
    if is_free(port):
        return port
    if forced:
        raise UsageError(
            f"{service}: port {port} of {LOOPBACK} is in use by another process",
            remedy="stop that process, or leave the port out and a free one is chosen",
        )
    return pick()


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
