"""The model of a program in a sandbox: a port at its loopback that leads to a gateway.

Each connection is carried byte for byte to one of the gateways, after one line that names whose
requests these are: `MAINSPRING <key>`. The sandbox never learns the key, the gateway's address, or
any other way out. Invariants: a connection waits while no gateway answers, for WAIT_S at most; what
a sandbox opens is bounded; when this process dies the port is shut until a successor opens it
again. Imported by `infra.sandbox.session`.
"""

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

import structlog

from infra.sandbox.loopback import PIECE_BYTES, LoopbackServer, Stream, splice
from infra.sandbox.netns import listen_inside
from mainspring.errors import ConfigError
from mainspring.programs.profile import MODEL_PORT

log = structlog.get_logger()

MAX_CONNECTIONS = 64
"""Connections of one sandbox at a time; more wait for a turn."""
IDLE_S = 2 * 3600.0
"""A reply takes as long as it takes, also in a paused campaign: only what is abandoned is cut."""
CONNECT_TIMEOUT_S = 5.0
WAIT_S = 60.0
"""While no gateway answers."""
RETRY_S = 0.25
PREAMBLE = "MAINSPRING {key}\r\n"


Gateways = Callable[[], Sequence[str]]
"""Where they are now: `host:port`, or `tls://host:port`. Called for each connection."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a sandbox's requests go, and as whose."""

    gateways: Gateways
    """Which one is asked first depends on the key; the others when it does not answer."""
    key: str
    """Key by which the gateway knows the rollout; one word of ASCII."""
    is_told: bool = True
    """To the gateway, by a line of this process; else clients send it in path or header."""

    def __post_init__(self) -> None:
        if not self.key.isascii() or not self.key.isprintable() or len(self.key.split()) != 1:
            raise ConfigError(
                "the key of a model port is not one word of ASCII",
                remedy="make it from letters and digits, as `secrets.token_urlsafe` does",
            )

    def in_order(self) -> list[str]:
        """The first one to ask first."""
        gateways = list(self.gateways())
        first = zlib.crc32(self.key.encode()) % max(1, len(gateways))
        return gateways[first:] + gateways[:first]


class ModelPort:
    """Made by `opened`; `close` cuts what is under way."""

    def __init__(self, route: Route, owner: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: for addresses with it; else this machine's certificates."""
        self._route = route
        self._owner = owner
        self._tls = tls
        self._server = LoopbackServer(self._handle, MAX_CONNECTIONS)

    @classmethod
    async def opened(cls, pid: int, route: Route, owner: str) -> Self:
        """For the sandbox `owner`, whose process `pid` is. Raises NoEntry."""
        port = cls(route, owner)
        port.serve(await listen_inside(pid, MODEL_PORT))
        return port

    def serve(self, listener: socket.socket) -> None:
        self._server.serve(listener)

    async def lead(self, route: Route) -> None:
        """Elsewhere, or for another owner of the requests: what is under way is cut."""
        self._route = route
        await self._server.cut()

    async def close(self) -> None:
        await self._server.close()

    async def _handle(self, client: Stream) -> None:
        async with asyncio.timeout(IDLE_S):  # no gateway is bothered before there is a request
            first = await client.reader.read(PIECE_BYTES)
        if not first:
            return
        route = self._route
        gateway = await self._connect(route)
        if gateway is None:
            return
        try:
            preamble = PREAMBLE.format(key=route.key).encode() if route.is_told else b""
            gateway.writer.write(preamble + first)
            await gateway.writer.drain()
            await splice(client, gateway, IDLE_S)
        finally:
            gateway.writer.transport.abort()

    async def _connect(self, route: Route) -> Stream | None:
        """None: no gateway answered for WAIT_S."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while True:
            reason = "there is none"
            for address in route.in_order():
                try:
                    host, port, by_tls = _parse(address)
                    tls = (self._tls or ssl.create_default_context()) if by_tls else None
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        return Stream(*await asyncio.open_connection(host, port, ssl=tls))
                # A timeout and a wrong certificate are OSErrors, too.
                except (OSError, ConfigError) as error:
                    reason = f"{address}: {error or type(error).__name__}"
            if loop.time() >= until:
                log.warning("no gateway answers a sandbox", sandbox=self._owner, reason=reason)
                return None
            await asyncio.sleep(RETRY_S)


def _parse(address: str) -> tuple[str, int, bool]:
    scheme, mark, rest = address.partition("://")
    if not mark:
        scheme, rest = "tcp", address
    host, port, path = None, None, ""
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{rest}")
        host, port, path = parts.hostname, parts.port, parts.path
    if scheme not in ("tcp", "tls") or not host or not port or path:
        raise ConfigError(
            f"{address!r} is not the address of a gateway",
            remedy="write host:port, or tls://host:port",
        )
    return host, port, scheme == "tls"
