"""The one way out of a sandbox, for tasks that name hosts they need: a proxy at its loopback.

Invariants: only hosts and ports of the allow-list are connected to, names are resolved outside, by
this process; a sandbox whose task names nothing has no way out at all; when this process dies the
way is shut until a successor opens it again. Imported by the sandbox backends.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

import structlog

from infra.sandbox.loopback import LoopbackServer, Stream, splice
from infra.sandbox.netns import listen_inside
from mainspring.tasks.allow_list import AllowList

log = structlog.get_logger()

PORT = 3128
HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 128
"""Connections of one sandbox at a time; more wait for a turn."""
_LAST = b"Connection: close"
_PROXY = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}
"""Variables by which a command finds the way."""


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Request:
    host: str
    port: int
    head: bytes
    """First bytes to send on; empty for a tunnel."""

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
        self._server = LoopbackServer(self._handle, MAX_CONNECTIONS, HEAD_BYTES)

    @classmethod
    async def opened(cls, pid: int, allow_hosts: Sequence[str], owner: str) -> Self:
        """For the sandbox `owner`, whose process `pid` is. Raises NoEntry."""
        egress = cls(AllowList.parse(allow_hosts), owner)
        egress.serve(await listen_inside(pid, PORT))
        return egress

    def serve(self, listener: socket.socket) -> None:
        self._server.serve(listener)

    async def close(self) -> None:
        await self._server.close()

    async def _handle(self, client: Stream) -> None:
        try:
            await self._serve_one(client)
        except _Refused as refused:
            text = f"{refused}\n".encode()
            status = f"{refused.status.value} {refused.status.phrase}"
            head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close"
            client.writer.write(head.encode() + b"\r\n\r\n" + text)
            await client.writer.drain()

    async def _serve_one(self, client: Stream) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            request = _Request.parse(await client.reader.readuntil(b"\r\n\r\n"))
        upstream = await self._connect(request)
        try:
            if request.head:
                upstream.writer.write(request.head)
                status = await upstream.reader.readuntil(b"\r\n")
                client.writer.write(status + _LAST + b"\r\n")
            else:
                client.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await splice(client, upstream)
        finally:
            upstream.writer.close()

    async def _connect(self, request: _Request) -> Stream:
        where = f"{request.host}:{request.port}"
        if not self._allowed.allows(request.host, request.port):
            log.info(
                "a sandbox asked for what its task does not allow", owner=self._owner, to=where
            )
            raise _Refused(HTTPStatus.FORBIDDEN, f"{where} is not on this task's allow-list")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                entries = await loop.getaddrinfo(
                    request.host, request.port, type=socket.SOCK_STREAM
                )
                addresses = [str(entry[4][0]) for entry in entries]
                usable = [a for a in addresses if self._allowed.allows_address(request.host, a)]
                if not usable:
                    raise _Refused(
                        HTTPStatus.FORBIDDEN, f"{where} leads to {addresses[0]}, inside the node"
                    )
                return Stream(*await asyncio.open_connection(usable[0], request.port))
        except (OSError, TimeoutError) as error:
            raise _Refused(HTTPStatus.BAD_GATEWAY, f"{where} cannot be reached: {error}") from None


def _is_hop(line: bytes) -> bool:
    name = line.partition(b":")[0].strip().lower()
    return name in (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")
