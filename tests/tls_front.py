"""TLS in front of a server that has none: real handshakes, with certificates of both sides."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.certificates import Certificate


def server_context(certificate: Certificate, authority: Path | None = None) -> ssl.SSLContext:
    """`authority`: clients need a certificate of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert, certificate.key)
    if authority is not None:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def speaking_grpc_over_tls(
    address: str, certificate: Certificate, authority: Path | None = None
) -> AsyncIterator[str]:
    """The address at which the server at `address` speaks TLS."""
    host, _, port = address.rpartition(":")
    context = server_context(certificate, authority)
    context.set_alpn_protocols(["h2"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await passed_on(reader, writer, host, int(port))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def passed_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str | None,
    port: int | None,
    first: bytes = b"",
) -> None:
    """What is said in both directions, until one side ends. `first`: was read already."""
    behind, to_server = await asyncio.open_connection(host, port)
    to_server.write(first)
    ends = [
        asyncio.ensure_future(_pass_on(reader, to_server)),
        asyncio.ensure_future(_pass_on(behind, writer)),
    ]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        writer.close()
        to_server.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
