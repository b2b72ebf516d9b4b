"""An edge hands on requests to gateways that dialled out to it, whatever dies in between."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from edges import dialled, edge_and_gateway, edge_here, scripted_process
from raw_client import ASK, connected, post
from scripted_answers import KEY, Script, calling

from gateway.edge.wire import MAX_LINES
from mainspring.programs.reply import Reply
from tests.edge_process import edge_process
from tests.waiting import until

CHAT = "/v1/chat/completions"
MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Fix it."}]}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Fix it."}]}]}


def client_at(url: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0)


async def test_every_dialect_is_answered_through_an_edge() -> None:
    script = Script(default=calling("bash", "{}", text="Done."))
    async with edge_and_gateway(script) as edge, client_at(edge.at.url) as client:
        for path, body in (
            (CHAT, ASK),
            ("/v1/responses", {"model": "m", "input": "Fix it."}),
            ("/v1/messages", MESSAGES),
            ("/v1beta/models/m:generateContent", GEMINI),
            (f"/s/{KEY}/v1/chat/completions", ASK),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 200 and "Done." in answer.text, answer.text
        assert len(script.asked) == 5 and script.told == [1, 2, 3, 4, 5]
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200
        counted = await client.post("/v1/messages/count_tokens", json=MESSAGES)
        assert counted.json() == {"input_tokens": 2}
        unknown = await client.post("/v1/messages/batches", json={})
        assert unknown.json()["error"]["type"] == "not_found_error"
        assert (await client.put("/sessions", json={})).status_code == 404  # this one has no desk
        wrong = await client.post(CHAT, json=ASK, headers={"authorization": "Bearer other"})
        assert wrong.status_code == 401


async def test_a_stream_comes_as_it_is_made() -> None:
    script = Script()
    script.may_answer.clear()
    async with (
        edge_here() as edge,
        dialled(edge.at.url, script, keep_alive_s=0.05),
        client_at(edge.at.url) as client,
        client.stream("POST", CHAT, json={**ASK, "stream": True}) as stream,
    ):
        lines = stream.aiter_lines()
        assert (await anext(lines)).startswith(":")  # while the reply is awaited
        script.may_answer.set()
        rest = [line async for line in lines]
    assert rest[-2] == "data: [DONE]", rest
    assert stream.headers["content-type"].startswith("text/event-stream")


async def test_a_request_waits_for_a_gateway_and_is_told_when_none_comes() -> None:
    script = Script()
    async with edge_here(no_gateway_s=0.2) as edge, client_at(edge.at.url) as client:
        for path, body, where in (
            (CHAT, ASK, ("error", "message")),
            ("/v1/messages", MESSAGES, ("error", "message")),
            ("/v1beta/models/m:generateContent", GEMINI, ("error", "message")),
            ("/sessions", {}, ("error", "message")),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
            told = answer.json()
            for name in where:
                told = told[name]
            assert told == "no gateway is connected for the moment: ask again"
    async with edge_here() as edge, client_at(edge.at.url) as client:
        asking = asyncio.create_task(client.post(CHAT, json=ASK))
        await asyncio.sleep(0.1)
        async with dialled(edge.at.url, script):
            assert (await asking).status_code == 200


async def test_many_requests_at_once_share_two_gateways() -> None:
    """More than both hold lines ready: they dial more."""
    one, two = Script(), Script()
    for script in (one, two):
        script.may_answer.clear()
    async with (
        edge_here() as edge,
        dialled(edge.at.url, one),
        dialled(edge.at.url, two),
        client_at(edge.at.url) as client,
    ):
        client.timeout = httpx.Timeout(120.0)
        bodies = [{**ASK, "messages": [{"role": "user", "content": str(n)}]} for n in range(80)]
        asking = [asyncio.create_task(client.post(CHAT, json=body)) for body in bodies]
        await until(lambda: len(one.asked) + len(two.asked) == 80)
        assert min(len(one.asked), len(two.asked)) >= 20
        for script in (one, two):
            script.may_answer.set()
        answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(one.told) == list(range(1, len(one.asked) + 1))


async def test_a_client_that_leaves_ends_its_wait_at_the_gateway() -> None:
    script = Script()
    script.may_answer.clear()
    async with edge_and_gateway(script) as edge:
        async with connected(edge.at) as raw:
            await raw.send(post(headers={"authorization": f"Bearer {KEY}"}))
            await until(lambda: len(script.asked) == 1)
        await until(lambda: script.num_cancelled == 1)
        assert edge.lines.num_gateways == 1


async def test_what_a_client_does_not_read_is_held_nowhere() -> None:
    """The answer waits at the gateway, and is no delivered one."""
    size = 30_000_000
    script = Script(default=Reply(text="x" * size))
    async with edge_and_gateway(script) as edge, connected(edge.at) as raw:
        await raw.send(post(headers={"authorization": f"Bearer {KEY}"}))
        head = await raw.until(b"\r\n\r\n")
        assert b" 200 " in head
        await asyncio.sleep(1.0)
        assert script.told == []
        num_read = 0
        while num_read < size:
            num_read += len(await raw.reader.read(2**20))
        await until(lambda: script.told == [1])


async def test_bodies_are_bounded_one_by_one_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.channel.MAX_BODY_BYTES", 100_000)
    monkeypatch.setattr(
        "gateway.edge.held.Held.has_room", lambda held, n: held.num_bytes + n < 150_000
    )
    script = Script()
    script.may_answer.clear()
    async with edge_and_gateway(script) as edge, client_at(edge.at.url) as client:
        answer = await client.post(CHAT, content=b"x" * 100_001)
        assert answer.status_code == 413
        large = {**ASK, "messages": [{"role": "user", "content": "x" * 90_000}]}
        first = asyncio.create_task(client.post(CHAT, json=large))
        await until(lambda: len(script.asked) == 1)
        full = await client.post(CHAT, json=large)
        assert full.status_code == 503 and "too many requests" in full.text
        script.may_answer.set()
        assert (await first).status_code == 200
        assert (await client.post(CHAT, json=large)).status_code == 200  # there is room again


async def test_a_gateway_that_is_killed_while_a_request_waits(tmp_path: Path) -> None:
    script = Script()
    async with edge_process(tmp_path) as (url, edge), client_at(url) as client:
        with scripted_process(tmp_path, url, "hang") as hanging:
            await edge.until_told("a gateway connected")
            asking = asyncio.create_task(client.post(CHAT, json=ASK))
            await hanging.until_told("asked")
            async with dialled(url, script):
                await edge.until_told("a gateway connected", 2)
                hanging.kill()
                answer = await asking
                await edge.until_told("a gateway left")
                assert len(edge.told("a gateway left")) == 1
    assert answer.status_code == 200
    # The other one is told that it was sent before: its answer may be stored.
    assert [is_retry for _, _, is_retry in script.asked] == [True]
    assert hanging.told("asked")[0]["is_retry"] is False


async def test_an_answer_that_has_begun_is_cut(tmp_path: Path) -> None:
    async with edge_process(tmp_path) as (url, edge), client_at(url) as client:
        with scripted_process(tmp_path, url, "begin") as gateway:
            body = {**ASK, "stream": True}
            async with client.stream("POST", CHAT, json=body) as stream:
                pieces = stream.aiter_raw()
                assert (await anext(pieces)).startswith(b":")
                gateway.kill()
                with pytest.raises(httpx.RemoteProtocolError):
                    async for _ in pieces:
                        pass
        [cut] = edge.told("an answer was cut")
        assert "broke" in cut["cause"]


async def test_a_request_that_ends_gateways_is_not_given_to_all(tmp_path: Path) -> None:
    async with edge_process(tmp_path) as (url, edge), client_at(url) as client:
        asking = None
        for number in range(1, 4):
            with scripted_process(tmp_path, url, "hang") as gateway:
                await edge.until_told("a gateway connected", number)
                asking = asking or asyncio.create_task(client.post(CHAT, json=ASK))
                await gateway.until_told("asked")
        assert asking is not None
        answer = await asking
    assert answer.status_code == 503
    assert "ended before they answered" in answer.json()["error"]["message"]


async def test_no_request_fails_while_gateways_are_killed_one_after_the_other(
    tmp_path: Path,
) -> None:
    """Clients that ask once and no more: each is answered, with the answer to its own words."""
    async with edge_here() as edge, client_at(edge.at.url) as client, AsyncExitStack() as stays:
        stays.enter_context(scripted_process(tmp_path, edge.at.url, "echo"))
        await until(lambda: edge.lines.num_gateways == 1)
        is_over = False
        num_answered = 0

        async def ask(number: int) -> None:
            nonlocal num_answered
            while not is_over:
                words = f"client {number}, request {num_answered}"
                body = {**ASK, "messages": [{"role": "user", "content": words}]}
                answer = await client.post(CHAT, json=body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"][0]["message"]["content"] == words
                num_answered += 1

        asking = [asyncio.create_task(ask(number)) for number in range(12)]
        for _ in range(5):
            with scripted_process(tmp_path, edge.at.url, "echo") as doomed:
                await until(lambda: edge.lines.num_gateways == 2)
                await doomed.until_told("asked", 5)
                doomed.kill()
            await until(lambda: edge.lines.num_gateways == 1)
        is_over = True
        await asyncio.gather(*asking)
        assert num_answered > 50


async def test_an_edge_that_is_killed_is_dialled_again(tmp_path: Path) -> None:
    script = Script()
    script.may_answer.clear()
    async with edge_process(tmp_path) as (url, edge), client_at(url) as client:
        port = int(url.rpartition(":")[2])
        async with dialled(url, script):
            await edge.until_told("a gateway connected")
            asking = asyncio.create_task(client.post(CHAT, json=ASK))
            await until(lambda: len(script.asked) == 1)
            edge.kill()
            with pytest.raises(httpx.HTTPError):
                await asking
            await until(lambda: script.num_cancelled == 1)
            script.may_answer.set()
            async with edge_process(tmp_path, port) as (_, again):
                await again.until_told("a gateway connected")
                assert (await client.post(CHAT, json=ASK)).status_code == 200


async def test_a_line_that_was_silent_is_asked_whether_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.edge.lines.PING_EVERY_S", 0.1)
    monkeypatch.setattr("gateway.edge.lines._LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("gateway.edge.line_connection.SILENT_S", 1.0)
    monkeypatch.setattr("gateway.edge.line_connection.LineConnection.headers_timeout_s", 1.0)
    script = Script()
    async with edge_and_gateway(script) as edge, client_at(edge.at.url) as client:
        await until(lambda: len(edge.lines.every()) == 4)
        lines = edge.lines.every()
        await asyncio.sleep(2.0)
        assert edge.lines.every() == lines
        monkeypatch.setattr("gateway.edge.lines.PING_EVERY_S", 1000.0)
        await until(lambda: not edge.lines.every() & lines)  # the gateway found them dead
        await until(lambda: len(edge.lines.every()) == 4)
        assert (await client.post(CHAT, json=ASK)).status_code == 200


async def test_a_gateway_that_is_stopped_and_not_gone_loses_what_waits_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its kernel still answers for it; its process does not."""
    monkeypatch.setattr("gateway.edge.lines.PING_EVERY_S", 0.5)
    monkeypatch.setattr("gateway.edge.lines.PING_TIMEOUT_S", 2.0)
    script = Script()
    async with edge_here() as edge, client_at(edge.at.url) as client:
        with scripted_process(tmp_path, edge.at.url, "hang") as stopped:
            await until(lambda: edge.lines.num_gateways == 1)
            asking = asyncio.create_task(client.post(CHAT, json=ASK))
            await stopped.until_told("asked")
            stopped.popen.send_signal(signal.SIGSTOP)
            async with dialled(edge.at.url, script):
                assert (await asking).status_code == 200
                assert edge.lines.num_gateways == 1


async def test_a_gateway_holds_so_many_lines_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.edge.dialling.MAX_LINES", 3)
    script = Script()
    script.may_answer.clear()
    async with (
        edge_here(no_gateway_s=0.5) as edge,
        dialled(edge.at.url, script),
        client_at(edge.at.url) as client,
    ):
        asking = [asyncio.create_task(client.post(CHAT, json=ASK)) for _ in range(3)]
        await until(lambda: len(script.asked) == 3)
        began = time.monotonic()
        answer = await client.post(CHAT, json=ASK)
        assert answer.status_code == 503 and "busy" in answer.text
        assert time.monotonic() - began >= 0.5
        assert len(edge.lines.every()) == 3 < MAX_LINES
        script.may_answer.set()
        assert {each.status_code for each in await asyncio.gather(*asking)} == {200}
