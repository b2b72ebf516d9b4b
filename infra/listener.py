"""A TCP socket that listens for one server of this process. Imported by engine and gateway."""

import socket

from mainspring.errors import ServiceError


def listen(host: str, port: int) -> socket.socket:
    """Port 0: a free one. Raises ServiceError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off when the protocol is named: an answer is several small
    # writes, and each would wait up to 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy="choose another --port, or stop the server that has it",
        ) from None
    return listener
