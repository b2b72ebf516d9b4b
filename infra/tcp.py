"""Options of TCP connections that outlive silence. Imported by gateways and edges."""

import asyncio
import socket

IDLE_S = 15
"""Without a byte for so long, the kernel asks the other end whether it is there."""
BETWEEN_S = 5
NUM_ASKED = 3
"""Without an answer the connection is lost: after 30 s in all."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """A host that loses its power sends no word: the kernel notices it."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_S),
        ("TCP_KEEPINTVL", BETWEEN_S),
        ("TCP_KEEPCNT", NUM_ASKED),
        ("TCP_USER_TIMEOUT", (IDLE_S + NUM_ASKED * BETWEEN_S) * 1000),
    ):
        if hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
