"""The viewer's HTTP server: its address, its token, and its end.

Invariants: it listens elsewhere than on loopback only with a token; where it answers is recorded in
the home folder while it lives; a signal ends it within seconds, whatever readers hold open.
Imported by the command line and tests.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from infra.stack import viewer_address
from infra.tcp import listen
from mainspring.errors import ServiceError, UsageError
from view.access import is_loopback
from view.actions.protocol import Action
from view.app import make_app
from view.viewer import Viewer, WaitsHere

NUM_PORTS = 20
"""Ports that are tried, each after the one that is in use."""
SHUTDOWN_S = 2
"""Streams of readers are cut after this."""
MIN_TOKEN_CHARS = 16
_IN_USE = os.strerror(errno.EADDRINUSE)
_EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    host: str = "127.0.0.1"
    port: int = 8600
    """0: a free one."""
    allowed_hosts: Sequence[str] = ()
    token_file: Path | None = None


def check(options: ViewOptions) -> str:
    """The token; empty, where none is required. Raises UsageError."""
    if options.token_file is not None:
        return _token(options.token_file)
    if not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host} is reachable from other machines: anyone who reaches it would "
            "read every rollout",
            remedy="give --token-file FILE with a token of 16 or more characters in its first line",
        )
    return ""


def _token(file: Path) -> str:
    try:
        token = file.read_text().partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--token-file {file} cannot be read: {getattr(error, 'strerror', None) or error}",
            remedy="make it: `openssl rand -hex 24 > FILE`, readable for you alone",
        ) from None
    if len(token) < MIN_TOKEN_CHARS:
        raise UsageError(
            f"--token-file {file}: its first line has {len(token)} characters, a token needs "
            f"{MIN_TOKEN_CHARS}",
            remedy="make one: `openssl rand -hex 24 > FILE`",
        )
    return token


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are handled below


async def serve(
    options: ViewOptions,
    home: Path | None,
    say: Callable[[str], None],
    actions: Sequence[Action],
    waits_here: WaitsHere,
) -> None:
    """Serve until a signal. `say`: told where it answers. `actions`: what may be done from its
    pages. `waits_here`: see `Viewer`. Raises UsageError, ServiceError."""
    token = check(options)
    viewer = Viewer(home, waits_here=waits_here)
    listener = _listen(options)
    port = listener.getsockname()[1]
    url = _url(options.host, port)
    hosts = [*options.allowed_hosts]
    if not is_loopback(options.host):
        hosts += [options.host, socket.gethostname()]
    server = _Server(
        uvicorn.Config(
            make_app(viewer, hosts=hosts, token=token, actions=actions),
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, _end, server)
    try:
        viewer_address.record(viewer.settings.home, url)
        if options.port and port != options.port:
            say(f"port {options.port} is in use: this viewer takes {port}")
        say(f"viewer {url}")
        await server.serve(sockets=[listener])
    finally:
        viewer_address.forget(viewer.settings.home)
        listener.close()
        await viewer.close()


def _end(server: uvicorn.Server) -> None:
    server.should_exit = True


def _listen(options: ViewOptions) -> socket.socket:
    """Raises ServiceError when neither the port nor one of the next can be had."""
    last = min(options.port + NUM_PORTS, 65_535) if options.port else 0
    for port in range(options.port, last + 1):
        try:
            return listen(options.host, port, at_once=True)
        except ServiceError as error:
            if _IN_USE not in error.message:
                raise
    raise ServiceError(
        f"no port from {options.port} to {last} is free on {options.host}",
        remedy="give another --port, or --port 0 for any that is free",
    )


def _url(host: str, port: int) -> str:
    name = socket.gethostname() if host in _EVERYWHERE else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
