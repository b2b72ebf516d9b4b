"""The proxy against a real HTTP server, and a socket in another process's network."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from infra.sandbox.egress import Egress
from infra.sandbox.netns import NoEntry, listen_inside
from mainspring.tasks.allow_list import AllowList
from tests.web_server import Answer, serving


class Echo(Answer):
    def do_GET(self) -> None:
        self.answer(f"{self.path} {self.headers['Host']} {self.headers['Connection']}".encode())


@pytest.fixture
def server() -> Iterator[str]:
    with serving(Echo) as address:
        yield address


@pytest.fixture
async def proxy(server: str) -> AsyncIterator[str]:
    egress = Egress(AllowList.parse([server, "localhost:80", "nowhere.invalid:80"]), "test")
    listener = socket.create_server(("127.0.0.1", 0))
    egress.serve(listener)
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    await egress.close()


async def test_an_allowed_host_is_reached(proxy: str, server: str) -> None:
    async with httpx.AsyncClient(proxy=f"http://{proxy}") as http:
        answers = [await http.get(f"http://{server}/a?b=c") for _ in range(2)]
    assert [answer.text for answer in answers] == [f"/a?b=c {server} close"] * 2


async def test_a_tunnel_carries_whatever_is_sent(proxy: str, server: str) -> None:
    reader, writer = await asyncio.open_connection(*proxy.split(":"))
    writer.write(f"CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n".encode())
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET /through HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"/through x close" in await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("http://example.com/", 403, "example.com:80 is not on this task's allow-list"),
        ("http://localhost/", 403, "inside the node"),
        ("http://nowhere.invalid/", 502, "cannot be reached"),
    ],
)
async def test_everything_else_is_refused(proxy: str, url: str, status: int, said: str) -> None:
    async with httpx.AsyncClient(proxy=f"http://{proxy}", timeout=60) as http:
        answer = await http.get(url)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"CONNECT x\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_what_is_no_proxy_request_is_told_so(proxy: str, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection(*proxy.split(":"))
    writer.write(raw)
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_no_process_no_network() -> None:
    with pytest.raises(NoEntry, match="No such file"):
        await listen_inside(2**22 + 1, 3128)
