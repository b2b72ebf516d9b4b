"""Waiting for a reply: comments meanwhile, a client that leaves, and what counts as delivered."""

import asyncio
import json
import re
from collections import deque
from contextlib import AsyncExitStack

import anthropic
import openai
import pytest
from raw_client import ASK, connected, post
from scripted_answers import KEY, Script, serving
from starlette.types import Message

from gateway.app import make_app
from gateway.protocol import ProgramPromptTooLong, SessionOver, UnrenderableRequest
from mainspring.errors import DatabaseError
from mainspring.programs.reply import Reply
from tests.waiting import until

HUGE = Reply(text="x" * 30_000_000)
"""More than the buffers of two sockets."""
HEADERS = {"authorization": f"Bearer {KEY}"}


async def test_a_stream_gets_comments_while_it_waits() -> None:
    script = Script()
    script.may_answer.clear()
    async with serving(script, keep_alive_s=0.05) as address, connected(address) as raw:
        await raw.send(post(body={**ASK, "stream": True}, headers=HEADERS))
        head = await raw.until(b"\r\n\r\n")
        assert b"200 OK" in head and b"text/event-stream" in head
        for _ in range(3):
            assert (await raw.until(b"\n\n")).endswith(b": waiting\n\n")
        script.may_answer.set()
        whole = await raw.until(b"data: [DONE]\n\n")
        assert b"Done." in whole
        await until(lambda: script.told == [1])


@pytest.mark.parametrize("reply", [Reply(text="Done."), SessionOver("over")], ids=["text", "over"])
async def test_gemini_waits_without_comments(reply: Reply | Exception) -> None:
    """Seen: its SDK for JavaScript reads events by this expression, and errors as bare JSON."""
    script = Script(replies=deque([reply]))
    script.may_answer.clear()
    path = "/v1beta/models/m:streamGenerateContent?alt=sse"
    ask = post(path, {"contents": [{"parts": [{"text": "Fix it."}]}]}, {"x-goog-api-key": KEY})
    async with serving(script, keep_alive_s=0.02) as address, connected(address) as raw:
        await raw.send(ask)
        await raw.until(b"\r\n\r\n1\r\n\n\r\n1\r\n\n\r\n")
        script.may_answer.set()
        chunks = (await raw.until(b"\r\n0\r\n\r\n")).decode().split("\r\n")[1::2]
    *waiting, last = [chunk for chunk in chunks if chunk]
    assert set(waiting) <= {"\n"}
    if isinstance(reply, Reply):
        match = re.match(r"^\s*data: (.*)(?:\n\n|\r\r|\r\n\r\n)", "\n" + last)
        assert match is not None
        assert json.loads(match[1])["candidates"][0]["finishReason"] == "STOP"
    else:
        assert json.loads(last)["error"]["status"] == "PERMISSION_DENIED"


async def test_clients_read_a_stream_that_began_with_comments() -> None:
    script = Script()
    async with serving(script, keep_alive_s=0.02) as address:
        chat = openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=KEY, max_retries=0)
        claude = anthropic.AsyncAnthropic(base_url=address.url, api_key=KEY, max_retries=0)
        async with chat, claude:
            for stream in (chat.chat.completions.stream, claude.messages.stream):
                script.may_answer.clear()
                asyncio.get_running_loop().call_later(0.2, script.may_answer.set)
                extra = {"max_tokens": 9} if stream == claude.messages.stream else {}
                async with stream(**ASK, **extra) as events:
                    assert [event async for event in events]
            script.may_answer.clear()
            asyncio.get_running_loop().call_later(0.2, script.may_answer.set)
            async with chat.responses.stream(model="m", input="Fix it.") as events:
                assert (await events.get_final_response()).output_text == "Done."


async def test_a_fault_after_the_first_comment_is_an_event_of_the_dialect() -> None:
    script = Script()
    async with serving(script, keep_alive_s=0.02) as address:
        chat = openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=KEY, max_retries=0)
        claude = anthropic.AsyncAnthropic(base_url=address.url, api_key=KEY, max_retries=0)
        async with chat, claude:
            for fault in (
                SessionOver("over"),
                UnrenderableRequest("no tools"),
                ProgramPromptTooLong(9, 8),
            ):
                script.replies.extend([fault] * 3)
                _answer_later(script)
                with pytest.raises(openai.APIError):
                    stream = await chat.chat.completions.create(**ASK, stream=True)
                    assert [chunk async for chunk in stream]
                _answer_later(script)
                with pytest.raises(anthropic.APIStatusError):
                    stream = await claude.messages.create(**ASK, max_tokens=9, stream=True)
                    assert [event async for event in stream]
                _answer_later(script)
                stream = await chat.responses.create(model="m", input="Fix it.", stream=True)
                (event,) = [event async for event in stream]
                is_long = isinstance(fault, ProgramPromptTooLong)
                code = "context_length_exceeded" if is_long else "invalid_prompt"
                assert event.response.error.code == code
    assert script.told == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_wait(stream: bool) -> None:
    script = Script()
    script.may_answer.clear()
    async with serving(script, keep_alive_s=0.05) as address:
        async with connected(address) as raw:
            await raw.send(post(body={**ASK, "stream": stream}, headers=HEADERS))
            await until(lambda: len(script.asked) == 1)
        await until(lambda: script.num_cancelled == 1)
    assert script.told == []


@pytest.mark.parametrize("stream", [False, True])
async def test_only_an_answer_that_was_read_whole_is_delivered(stream: bool) -> None:
    script = Script()
    script.replies.append(HUGE)
    ask = post(body={**ASK, "stream": stream}, headers=HEADERS)
    async with serving(script) as address:
        async with connected(address) as raw:
            await raw.send(ask)
            await raw.until(b"\r\n\r\n")
        async with connected(address) as raw:
            await raw.send(ask)
            await raw.until(b"[DONE]\n\n" if stream else b'"total_tokens": 10}}')
            await until(lambda: script.told == [2])
    assert script.told == [2]


async def test_a_slow_reader_is_delivered_at_the_end() -> None:
    script = Script(default=HUGE)
    async with serving(script) as address, connected(address) as raw:
        await raw.send(post(headers=HEADERS))
        await raw.until(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        assert script.told == []
        num_bytes = 0
        while num_bytes < len(HUGE.text):
            num_bytes += len(await raw.reader.read(2**20))
        await until(lambda: script.told == [1])


async def test_the_next_request_waits_until_the_answer_before_it_is_noted() -> None:
    """Else it would be taken for a repetition of the one that it follows."""
    script = Script()
    script.may_note.clear()
    async with serving(script) as address, connected(address) as raw, connected(address) as second:
        await raw.send(post(headers=HEADERS))
        assert (await raw.answer())[0] == 200
        await second.send(post(headers=HEADERS))
        await asyncio.sleep(0.2)
        assert len(script.asked) == 1
        script.may_note.set()
        assert (await second.answer())[0] == 200
        await until(lambda: script.told == [1, 2])


async def test_an_answer_that_cannot_be_noted_was_still_told() -> None:
    script = Script(note_fault=DatabaseError("down for the moment"))
    async with serving(script) as address, connected(address) as raw:
        for number in (1, 2):
            await raw.send(post(headers=HEADERS))
            assert (await raw.answer())[0] == 200
            await until(lambda number=number: len(script.told) == number)


async def test_clients_that_come_and_leave_leave_nothing_behind() -> None:
    script = Script()
    async with serving(script, keep_alive_s=0.01) as address:
        num_tasks = len(asyncio.all_tasks())
        for index in range(60):
            script.may_answer.clear()
            async with connected(address) as raw:
                await raw.send(post(body={**ASK, "stream": index % 2 == 0}, headers=HEADERS))
                await until(lambda index=index: len(script.asked) == index + 1)
                if index % 3 == 0:
                    script.may_answer.set()
                    await raw.until(b"\r\n\r\n")
        await until(lambda: len(asyncio.all_tasks()) == num_tasks)


async def test_a_server_that_ends_asks_clients_to_come_again() -> None:
    script = Script()
    script.may_answer.clear()
    async with AsyncExitStack() as clients:
        async with serving(script, keep_alive_s=0.05) as address:
            waiting = [await clients.enter_async_context(connected(address)) for _ in range(2)]
            for raw, stream in zip(waiting, (False, True), strict=True):
                await raw.send(post(body={**ASK, "stream": stream}, headers=HEADERS))
            await waiting[1].until(b": waiting\n\n")
            await until(lambda: len(script.asked) == 2)
        status, body = await waiting[0].answer()
        assert (status, b"ask again" in body) == (503, True)
        assert b"data:" not in await waiting[1].rest()
    await until(lambda: script.num_cancelled == 2)
    assert script.told == []


async def test_a_connection_that_is_lost_between_two_writes_is_not_delivered() -> None:
    """In any server: the loss is seen by what is received, not by what is sent."""
    script, lost, sent = Script(), asyncio.Event(), []

    async def receive() -> Message:
        if not sent:
            sent.append("body")
            return {"type": "http.request", "body": post().partition(b"\r\n\r\n")[2]}
        await lost.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            lost.set()

    headers = [(b"content-length", b"9"), (b"authorization", f"Bearer {KEY}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
    app = make_app(script)
    await app({**scope, "query_string": b"", "root_path": ""}, receive, send)
    assert len(script.asked) == 1
    assert script.told == []


def _answer_later(script: Script) -> None:
    script.may_answer.clear()
    asyncio.get_running_loop().call_later(0.2, script.may_answer.set)
