"""Postgres as others give it: with TLS, and behind Debian's PgBouncer."""

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.certificates import Certificate
from tests.tls_front import passed_on, server_context
from tests.waiting import until

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_pgbouncer = pytest.mark.skipif(
    PGBOUNCER is None, reason="pgbouncer is not installed (apt-get install pgbouncer)"
)


def readable_by_server(folder: Path, *files: Path) -> None:
    """Root's servers run as `nobody`, and take no key that others may read."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (folder, *files):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        for parent in folder.parents:
            if parent.stat().st_uid == 0:
                parent.chmod(parent.stat().st_mode | 0o011)


@dataclass
class TlsServer:
    """The embedded server, behind TLS: its own build has none. The rest of what is said is passed
    on as it is."""

    url: str
    """Of the database `url` there, without parameters."""
    seen: list[str] = field(default_factory=list)
    """TLS version and the client's name, of each connection that was encrypted."""


@asynccontextmanager
async def speaking_tls(
    url: str, certificate: Certificate, authority: Path | None = None
) -> AsyncIterator[TlsServer]:
    """`certificate`: the server's. `authority`: clients need a certificate of it."""
    context = server_context(certificate, authority)
    place = urlsplit(url)
    server = TlsServer("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(8)
        if first == SSL_REQUEST:
            writer.write(b"S")
            await writer.drain()
            with contextlib.suppress(OSError):
                await writer.start_tls(context)
            if writer.is_closing():
                return
            shown = writer.get_extra_info("peercert") or {}
            told = dict(part[0] for part in shown.get("subject", ()))
            version = writer.get_extra_info("ssl_object").version()
            server.seen.append(f"{version} {told.get('commonName', '')}")
            first = b""
        await passed_on(reader, writer, place.hostname, place.port, first)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        server.url = url.replace(f":{place.port}/", f":{port}/")
        yield server


SSL_REQUEST = struct.pack("!ii", 8, 80877103)


@asynccontextmanager
async def pgbouncer(folder: Path, url: str, mode: str, *more: str) -> AsyncIterator[str]:
    """The URL of a PgBouncer in front of the server at `url`. `more`: lines of its settings."""
    assert PGBOUNCER is not None
    server = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    users = folder / "users.txt"
    users.write_text(f'"{server.username}" "{server.password}"\n')
    file = folder / "pgbouncer.ini"
    lines = [
        *("[databases]", f"* = host={server.hostname} port={server.port}", "[pgbouncer]"),
        *("listen_addr = 127.0.0.1", f"listen_port = {port}", "unix_socket_dir ="),
        *("auth_type = scram-sha-256", f"auth_file = {users}", f"pool_mode = {mode}"),
        *("default_pool_size = 3", "max_client_conn = 400", *more),
    ]
    file.write_text("\n".join(lines) + "\n")
    readable_by_server(folder, users, file)
    account = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [PGBOUNCER, str(file)], stdout=log, stderr=log, **account
        )
    try:
        await until(lambda: _answers(port))
        place = f"{server.username}:{server.password}@127.0.0.1:{port}"
        yield f"postgresql://{place}{server.path}"
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
