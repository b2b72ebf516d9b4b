"""The stdin and stdout of a container, as Docker's API carries them over one connection.

Owns that connection and the thread that unpacks it. Attached before the container starts, nothing
it writes is missed. Imported by the Docker backend.
"""

import asyncio
import contextlib
import os
import socket
import struct
import threading
from typing import Any, Self

from docker.models.containers import Container

from infra.sandbox.shell.channel import CHANNEL_BYTES

STDOUT = 1
FRAME = struct.Struct(">BxxxL")
"""Which stream a frame is of, and how many bytes follow."""


class Attachment:
    """`reader` ends when the container does, or when the connection breaks."""

    def __init__(
        self, stream: Any, reader: asyncio.StreamReader, transport: asyncio.ReadTransport
    ) -> None:
        self._stream = stream
        self._connection: socket.socket = _connection(stream)
        self._transport = transport
        self.reader = reader

    @classmethod
    def attach(cls, container: Container) -> Any:
        """Blocking; `opened` makes an Attachment of the result on the event loop."""
        stream = container.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        _connection(stream).settimeout(None)  # the SDK's own is for requests
        return stream

    @classmethod
    async def opened(cls, stream: Any) -> Self:
        # Through a pipe: when the loop does not keep up, the thread waits and not memory grows.
        read_fd, write_fd = os.pipe()
        reader = asyncio.StreamReader(limit=CHANNEL_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", buffering=0)
        )
        threading.Thread(
            target=_pump, args=(_connection(stream), write_fd), daemon=True, name="docker-stream"
        ).start()
        return cls(stream, reader, transport)

    def send(self, data: bytes) -> None:
        """Blocking."""
        self._connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._transport.close()
        self._stream.close()
        self._connection.close()


def _connection(stream: Any) -> socket.socket:
    """The SDK wraps plain sockets into a file and leaves others as they are."""
    return getattr(stream, "_sock", stream)


def _pump(connection: socket.socket, write_fd: int) -> None:
    with (
        contextlib.suppress(OSError),
        open(write_fd, "wb", buffering=0) as sink,
        connection.makefile("rb") as incoming,
    ):
        while len(header := incoming.read(FRAME.size)) == FRAME.size:
            stream, size = FRAME.unpack(header)
            data = memoryview(incoming.read(size))
            while stream == STDOUT and data:
                data = data[sink.write(data) :]
