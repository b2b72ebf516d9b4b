"""TCP: a socket that listens for one server of this process, and connections that outlive silence.

Imported by engines, gateways, edges and connections to the store.
"""

import asyncio
import socket
from dataclasses import dataclass

from mainspring.errors import ServiceError

IDLE_S = 15
"""Without a byte for so long, the kernel asks the other end whether it is there."""
BETWEEN_S = 5
NUM_ASKED = 3
"""Without an answer the connection is lost: after 30 s in all."""
BACKLOG = 2048
"""Connections that wait to be accepted, as uvicorn has it."""


def listen(host: str, port: int, *, at_once: bool = False) -> socket.socket:
    """Port 0: a free one. `at_once`: connections wait from now on, and no other socket can take the
    port; else they are refused until a server listens, as those of an engine that loads its model.
    Raises ServiceError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off when the protocol is named: an answer is several small
    # writes, and each would wait up to 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        if at_once:
            # Two sockets may be bound to one port (SO_REUSEADDR) until one of them listens.
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy="choose another --port, or stop the server that has it",
        ) from None
    return listener


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The kernel's questions to a peer that is silent."""

    idle_s: int = IDLE_S
    interval_s: int = BETWEEN_S
    count: int = NUM_ASKED
    user_timeout_ms: int = (IDLE_S + NUM_ASKED * BETWEEN_S) * 1000
    """Sent bytes may stay without an answer for so long; 0: as the kernel has it."""
    on: bool = True


def keep_alive(transport: asyncio.BaseTransport, settings: KeepAlive = KeepAlive()) -> None:
    """A host that loses its power sends no word: the kernel notices it."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(settings.on))
    for name, value in (
        ("TCP_KEEPIDLE", settings.idle_s),
        ("TCP_KEEPINTVL", settings.interval_s),
        ("TCP_KEEPCNT", settings.count),
        ("TCP_USER_TIMEOUT", settings.user_timeout_ms),
    ):
        if settings.on and hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
