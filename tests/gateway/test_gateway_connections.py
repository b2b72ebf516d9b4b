"""Connections that a node binds to a session, and clients that do not keep to HTTP."""

import asyncio
import json
import socket
import ssl
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from raw_client import ASK, Raw, connected, post
from scripted_answers import KEY, OTHER_KEY, Script, serving

from gateway.connection import MAX_LINE_BYTES, Connection, preamble
from gateway.server import Bounds, Tls, serve
from mainspring.errors import ServiceError
from tests.waiting import until

SHORT = Bounds(headers_timeout_s=2.0, shutdown_timeout_s=1)
"""Long enough for a machine that stalls between a connection and its first bytes."""


def rollouts(script: Script) -> list[str]:
    return [session.rollout for session, _, _ in script.asked]


async def test_a_bound_connection_is_its_sessions() -> None:
    script = Script()
    async with serving(script) as address, connected(address) as raw:
        await raw.send(preamble(KEY) + post())
        assert (await raw.answer())[0] == 200
        for headers in (
            {"authorization": f"Bearer {OTHER_KEY}"},
            {"x-api-key": OTHER_KEY, "x-goog-api-key": OTHER_KEY},
            {"mainspring_key": OTHER_KEY, "mainspring-key": OTHER_KEY},
        ):
            await raw.send(post(headers=headers))
            assert (await raw.answer())[0] == 200
        for path in (
            f"/s/{OTHER_KEY}/v1/chat/completions",
            f"/v1/chat/completions?key={OTHER_KEY}",
        ):
            await raw.send(post(path))
            assert (await raw.answer())[0] == 200
    assert rollouts(script) == ["one"] * 6


async def test_pieces_of_an_answer_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nagle's algorithm is off: a client's kernel acknowledges a piece 40 ms late."""
    made: list[asyncio.Transport] = []
    usual = Connection.connection_made

    def connection_made(self: Connection, transport: asyncio.Transport) -> None:
        made.append(transport)
        usual(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    async with serving(Script()) as address, connected(address):
        await until(lambda: len(made) == 1)
        accepted = made[0].get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_preamble_may_come_in_pieces() -> None:
    script = Script()
    async with serving(script) as address, connected(address) as raw:
        for byte in preamble(KEY) + b"POST":
            await raw.send(bytes([byte]))
            await asyncio.sleep(0.001)
        await raw.send(post()[4:])
        assert (await raw.answer())[0] == 200
    assert rollouts(script) == ["one"]


async def test_a_bound_connection_with_an_unknown_key_asks_nothing() -> None:
    script = Script()
    async with serving(script) as address, connected(address) as raw:
        await raw.send(preamble("gone") + post(headers={"authorization": f"Bearer {KEY}"}))
        assert (await raw.answer())[0] == 401
    assert not script.asked


@pytest.mark.parametrize(
    "name, hidden",
    [
        ("a second preamble", preamble(KEY) + preamble(OTHER_KEY) + post()),
        ("between requests", preamble(KEY) + post() + preamble(OTHER_KEY) + post()),
        (
            "in a body that ends early",
            preamble(KEY) + post(body=b"{}" + preamble(OTHER_KEY) + post()),
        ),
        (
            "after a body of length 0",
            preamble(KEY) + post(headers={"content-length": "0"}) + preamble(OTHER_KEY) + post(),
        ),
        (
            "after chunks",
            preamble(KEY)
            + post(
                body=b"0\r\n\r\n" + preamble(OTHER_KEY) + post(),
                headers={"transfer-encoding": "chunked"},
            ),
        ),
        (
            "two lengths",
            preamble(KEY) + post(headers={"Content-Length": "1"}) + preamble(OTHER_KEY),
        ),
        ("behind a space", b" " + preamble(OTHER_KEY) + post()),
        ("behind a line end", preamble(KEY) + b"\r\n" + preamble(OTHER_KEY) + post()),
        (
            "with a space in the key",
            b"MAINSPRING " + OTHER_KEY.encode() + b" HTTP/1.1\r\n" + post(),
        ),
        ("with no key", b"MAINSPRING \r\n" + post()),
        ("with a long key", b"MAINSPRING " + b"k" * 2 * MAX_LINE_BYTES),
        ("with a header in the key", preamble(f"{KEY}\nx-api-key:{OTHER_KEY}") + post()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_nothing_that_a_program_sends_reaches_another_session(
    name: str, hidden: bytes
) -> None:
    script = Script()
    async with serving(script) as address, connected(address) as raw:
        await raw.send(hidden)
        raw.writer.write_eof()
        told = await raw.rest()
    assert set(rollouts(script)) <= {"one"}, name
    assert b"Traceback" not in told
    assert told.count(b"HTTP/1.1 200") <= 1


async def test_a_length_and_chunks_together_are_refused() -> None:
    script = Script()
    async with serving(script) as address, connected(address) as raw:
        chunked = b'5\r\n{"a":\r\n0\r\n\r\n'
        await raw.send(preamble(KEY) + post(body=chunked, headers={"Transfer-Encoding": "chunked"}))
        told = await raw.rest()
    assert told.startswith(b"HTTP/1.1 400")
    assert b"not both" in told
    assert not script.asked


async def test_chunked_bodies_are_read() -> None:
    async def parts() -> object:
        for byte in json.dumps(ASK).encode():
            yield bytes([byte])

    script = Script()
    async with serving(script) as address, httpx.AsyncClient() as client:
        url = f"{address.url}/s/{KEY}/v1/chat/completions"
        assert (await client.post(url, content=parts())).status_code == 200
    assert script.request.messages[0].text == "Fix it."


async def test_pipelined_requests_are_answered_in_order() -> None:
    script = Script()
    asks = [post(body={**ASK, "model": f"m{index}"}) for index in range(5)]
    async with serving(script) as address, connected(address) as raw:
        await raw.send(preamble(KEY) + b"".join(asks))
        models = [json.loads((await raw.answer())[1])["model"] for _ in asks]
    assert models == [f"m{index}" for index in range(5)]


async def test_headers_that_do_not_end_are_cut() -> None:
    openings = (b"", b"MAINSPR", preamble(KEY), preamble(KEY) + post() + b"POST /v1", b"GET / HTTP")
    async with serving(Script(), bounds=SHORT) as address, AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(connected(address)) for _ in openings]
        for raw, opening in zip(raws, openings, strict=True):
            await raw.send(opening)
        dripping = asyncio.create_task(_drip(raws[-1]))
        told = await asyncio.gather(*(raw.rest() for raw in raws))
        dripping.cancel()
    assert [text.count(b"HTTP/1.1 200") for text in told] == [0, 0, 0, 1, 0]


async def test_the_deadline_for_headers_cuts_no_request_that_waits_and_no_idle_connection() -> None:
    script = Script()
    async with (
        serving(script, bounds=SHORT) as address,
        connected(address) as busy,
        connected(address) as idle,
    ):
        await idle.send(preamble(KEY) + post())
        assert (await idle.answer())[0] == 200
        script.may_answer.clear()
        await busy.send(preamble(KEY) + post())
        await until(lambda: len(script.asked) == 2)
        await asyncio.sleep(SHORT.headers_timeout_s + 0.5)
        script.may_answer.set()
        assert (await busy.answer())[0] == 200
        await idle.send(post())
        assert (await idle.answer())[0] == 200


async def test_headers_without_end_are_refused() -> None:
    async with serving(Script()) as address, connected(address) as raw:
        await raw.send(preamble(KEY) + b"GET / HTTP/1.1\r\nx-long: " + b"x" * 200_000)
        assert (await raw.rest()).startswith(b"HTTP/1.1 400")


async def test_a_session_has_a_bound_on_connections() -> None:
    script = Script()
    script.may_answer.clear()
    bounds = Bounds(max_connections=3, shutdown_timeout_s=1)
    async with serving(script, bounds=bounds) as address, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(connected(address)) for _ in range(3)]
        for raw in busy:
            await raw.send(preamble(KEY) + post())
        await until(lambda: len(script.asked) == 3)
        fourth = await stack.enter_async_context(connected(address))
        await fourth.send(preamble(KEY) + post())
        assert await fourth.rest() == b""
        other = await stack.enter_async_context(connected(address))
        await other.send(preamble(OTHER_KEY) + post())
        script.may_answer.set()
        for raw in (*busy, other):
            assert (await raw.answer())[0] == 200
        # All of them wait for a request now: the oldest makes room.
        fifth = await stack.enter_async_context(connected(address))
        await fifth.send(preamble(KEY) + post())
        assert (await fifth.answer())[0] == 200
        assert await busy[0].rest() == b""
        await busy[1].send(post())
        assert (await busy[1].answer())[0] == 200


async def test_connections_that_end_make_room() -> None:
    script = Script()
    bounds = Bounds(max_connections=2, shutdown_timeout_s=1)
    async with serving(script, bounds=bounds) as address:
        for _ in range(10):
            async with connected(address) as raw:
                await raw.send(preamble(KEY) + post())
                assert (await raw.answer())[0] == 200
    assert len(script.asked) == 10


async def test_small_writes_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each answer takes 40 ms, until the client acknowledges its headers."""
    options: list[int] = []

    def connection_made(self: Connection, transport: asyncio.Transport) -> None:
        made(self, transport)
        options.append(
            transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        )

    made = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", connection_made)
    async with serving(Script()) as address, connected(address) as raw:
        await raw.send(preamble(KEY) + post())
        assert (await raw.answer())[0] == 200
    assert options == [1]


async def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServiceError, match="cannot listen"):
            async with serve(None, port=taken.getsockname()[1]):  # type: ignore[arg-type]
                pass


async def test_the_gateway_speaks_tls(tmp_path: Path) -> None:
    tls = Tls(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    words += f" -addext subjectAltName=IP:127.0.0.1 -out {tls.certificate} -keyout {tls.key}"
    await asyncio.to_thread(subprocess.run, words.split(), check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=str(tls.certificate))
    script = Script()
    async with serving(script, tls=tls) as address, httpx.AsyncClient(verify=trusted) as client:
        assert address.url.startswith("https://")
        told = await client.post(f"{address.url}/s/{KEY}/v1/chat/completions", json=ASK)
        assert told.status_code == 200
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=trusted)
        raw = Raw(reader, writer)
        await raw.send(preamble(OTHER_KEY) + post())
        assert (await raw.answer())[0] == 200
        await until(lambda: script.told == [1, 2])
        raw.close()
    assert rollouts(script) == ["one", "two"]


async def _drip(raw: Raw) -> None:
    while True:
        await raw.send(b"x")
        await asyncio.sleep(0.05)
