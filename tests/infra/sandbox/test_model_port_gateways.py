"""Where a model port leads, outside of any sandbox: by TLS, to those that answer, without noise."""

import asyncio
import shlex
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from infra.sandbox import model_port
from infra.sandbox.loopback import LoopbackServer, Stream
from infra.sandbox.model_port import ModelPort, Route
from mainspring.errors import ConfigError


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    preamble = await reader.readline()
    writer.write(preamble + await reader.readline())
    await writer.drain()
    writer.close()


@asynccontextmanager
async def port_to(
    addresses: Sequence[str], tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    port = ModelPort(Route(lambda: addresses, "key"), "test", tls)
    listener = socket.create_server(("127.0.0.1", 0))
    port.serve(listener)
    yield listener.getsockname()[1]
    await port.close()


async def said(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    words += " -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem"
    subprocess.run(shlex.split(words), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


async def test_a_certificate_is_checked(certified: Path) -> None:
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certified / "cert.pem", certified / "key.pem")
    trusted = ssl.create_default_context(cafile=str(certified / "cert.pem"))
    server = await asyncio.start_server(echo, "localhost", 0, ssl=own)
    plain = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, plain:
        secret = f"tls://localhost:{server.sockets[0].getsockname()[1]}"
        async with port_to([secret], trusted) as port:
            assert await said(port) == b"MAINSPRING key\r\nhello\n"
        # Its certificate is not trusted: no key is sent to it, and the other one answers.
        other = f"127.0.0.1:{plain.sockets[0].getsockname()[1]}"
        async with port_to([secret, other]) as port:
            assert await said(port) == b"MAINSPRING key\r\nhello\n"


async def test_who_waits_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_port, "WAIT_S", 0.5)
    for addresses in ([], ["127.0.0.1:1"], ["no gateway"]):
        async with port_to(addresses) as port:
            assert await said(port) == b""


async def test_addresses_that_are_none_are_passed_over() -> None:
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        good = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for bad in (
            "no gateway",
            "127.0.0.1",
            "http://127.0.0.1:1",
            "127.0.0.1:99999",
            "127.0.0.1:1",
        ):
            async with port_to([bad, good, bad]) as port:
                assert await said(port) == b"MAINSPRING key\r\nhello\n"


async def test_idle_connections_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_port, "IDLE_S", 0.3)

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b"MAINSPRING key\r\nhello\n"
        writer.close()

    async with await asyncio.start_server(quiet, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with port_to([address]) as port:
            assert await said(port) == b""
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""  # it never asked
            writer.close()


@pytest.mark.parametrize("key", ["", "two words", "line\r\n", "caf\u00e9"])
def test_a_key_is_one_word(key: str) -> None:
    with pytest.raises(ConfigError, match="one word of ASCII"):
        Route(list, key)


async def test_a_broken_handler_ends_its_connection_alone() -> None:
    async def handle(client: Stream) -> None:
        line = await client.reader.readline()
        if line == b"break\n":
            raise ZeroDivisionError
        client.writer.write(line)

    server = LoopbackServer(handle, max_connections=1)
    listener = socket.create_server(("127.0.0.1", 0))
    server.serve(listener)
    for word, answer in ((b"break\n", b""), (b"fine\n", b"fine\n")):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(word)
        try:
            assert await reader.read() == answer
        except ConnectionResetError:
            assert not answer
        writer.close()
    await server.close()
    await server.close()
