"""The one way out of a sandbox, for tasks that name hosts they need: a proxy at its loopback.

Invariants: only hosts and ports of the allow-list are connected to, names are resolved outside, by
this process; a sandbox whose task names nothing has no way out at all; when this process dies the
way is shut until a successor opens it again. Imported by the sandbox backends.
"""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

import structlog

from infra.sandbox.netns import listen_inside
from mainspring.tasks.allow_list import AllowList

log = structlog.get_logger()

PORT = 3128
HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 30.0
PIECE_BYTES = 64 << 10
MAX_CONNECTIONS = 128
"""Of one sandbox at a time; more wait for a turn."""
_LAST = b"Connection: close"
_PROXY = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}
"""What a command must know to find the way."""


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Request:
    host: str
    port: int
    head: bytes
    """What to send on first; empty for a tunnel."""

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """A CONNECT, or a request for an absolute http address. Raises _Refused."""
        first, _, rest = raw.partition(b"\r\n")
        try:
            method, target, version = first.decode("ascii").split(" ")
            tunnel = method == "CONNECT"
            address = urlsplit(f"//{target}" if tunnel else target)
            port = address.port or 80
        except ValueError:
            raise _Refused(HTTPStatus.BAD_REQUEST, "this is not an HTTP proxy request") from None
        if tunnel and address.hostname and address.port:
            return cls(address.hostname, port, b"")
        if tunnel or address.scheme != "http" or not address.hostname:
            raise _Refused(HTTPStatus.BAD_REQUEST, "expected CONNECT host:port or http://host/")
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        lines = [line for line in rest.split(b"\r\n") if not _is_hop(line)]
        # One request a connection: the next one may be for another host.
        head = b"\r\n".join([f"{method} {path} {version}".encode(), _LAST, *lines])
        return cls(address.hostname, port, head)


class Egress:
    """Made by `opened`; `close` cuts what is under way."""

    def __init__(self, allowed: AllowList, owner: str) -> None:
        self._allowed = allowed
        self._owner = owner
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    async def opened(cls, pid: int, allow_hosts: Sequence[str], owner: str) -> Self:
        """For the sandbox `owner`, whose process `pid` is. Raises NoEntry."""
        egress = cls(AllowList.parse(allow_hosts), owner)
        await egress.serve(await listen_inside(pid, PORT))
        return egress

    async def serve(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=HEAD_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._handle(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._turns:
            try:
                await self._serve_one(reader, writer)
            except _Refused as refused:
                text = f"{refused}\n".encode()
                status = f"{refused.status.value} {refused.status.phrase}"
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close"
                writer.write(head.encode() + b"\r\n\r\n" + text)
                with contextlib.suppress(OSError):
                    await writer.drain()
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                pass  # one side went away, or never said what it wants: the other is cut too
            finally:
                writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            request = _Request.parse(await reader.readuntil(b"\r\n\r\n"))
        upstream, upstream_writer = await self._connect(request)
        try:
            if request.head:
                upstream_writer.write(request.head)
                status = await upstream.readuntil(b"\r\n")
                writer.write(status + _LAST + b"\r\n")
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, upstream_writer))
                both.create_task(_copy(upstream, writer))
        except* OSError:
            pass
        finally:
            upstream_writer.close()

    async def _connect(
        self, request: _Request
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = f"{request.host}:{request.port}"
        if not self._allowed.allows(request.host, request.port):
            log.info(
                "a sandbox asked for what its task does not allow", owner=self._owner, to=where
            )
            raise _Refused(HTTPStatus.FORBIDDEN, f"{where} is not on this task's allow-list")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await loop.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
                addresses = [str(entry[4][0]) for entry in found]
                usable = [a for a in addresses if self._allowed.allows_address(request.host, a)]
                if not usable:
                    raise _Refused(
                        HTTPStatus.FORBIDDEN, f"{where} leads to {addresses[0]}, inside the node"
                    )
                return await asyncio.open_connection(usable[0], request.port)
        except (OSError, TimeoutError) as error:
            raise _Refused(HTTPStatus.BAD_GATEWAY, f"{where} cannot be reached: {error}") from None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _is_hop(line: bytes) -> bool:
    name = line.partition(b":")[0].strip().lower()
    return name in (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")
