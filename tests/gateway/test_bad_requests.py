"""What is refused, with the field's name in the dialect's own form."""

import asyncio
import json

import httpx
import pytest
from dialect_bodies import (
    CHAT,
    GEMINI,
    IMAGES,
    MESSAGES,
    PARTS,
    RESPONSES,
    RUN,
    TOOL,
    USER,
    chat,
    declared,
    function,
    gemini,
    messages,
    responses,
)
from raw_client import ASK, connected, post
from scripted_answers import KEY, Script, serving

from gateway.bodies import LARGE_BYTES, MAX_AT_ONCE
from gateway.channel import MAX_BODY_BYTES
from gateway.dialects.json_value import MAX_DEPTH

REFUSED = {
    # Wrong types.
    "chat: no messages": (*chat(messages=None), "messages must be a list"),
    "chat: messages as text": (*chat(messages="hi"), "messages must be a list"),
    "chat: empty messages": (*chat(messages=[]), "at least one message"),
    "chat: message as text": (*chat(messages=["hi"]), "messages[0] must be an object"),
    "chat: no role": (*chat(messages=[{"content": "x"}]), "messages[0].role must be text"),
    "chat: unknown role": (*chat(messages=[{"role": "god", "content": "x"}]), "messages[0].role"),
    "chat: content as number": (*chat(messages=[USER | {"content": 3}]), "messages[0].content"),
    "chat: unknown part": (
        *chat(messages=[USER | {"content": [{"type": "smell"}]}]),
        "messages[0].content[0].type",
    ),
    "chat: stream as text": (*chat(stream="yes"), "stream must be a boolean"),
    "chat: model as number": (*chat(model=7), "model must be text"),
    "chat: max_tokens as text": (*chat(max_tokens="9"), "max_tokens must be a whole number"),
    "chat: max_tokens true": (*chat(max_tokens=True), "max_tokens must be a whole number"),
    "responses: no input": (*responses(input=None), "input must be a list"),
    "responses: number as input": (*responses(input=[1]), "input[0] must be an object"),
    "messages: no content": (*messages(messages=[{"role": "user"}]), "messages[0].content"),
    "messages: system as number": (*messages(system=4), "system must be"),
    "gemini: no contents": (GEMINI, {}, "contents must be a list"),
    "gemini: parts as text": (*gemini(contents=[{"parts": "x"}]), "contents[0].parts"),
    "gemini: an unknown part": (*gemini(contents=[{"parts": [{"x": 1}]}]), "contents[0].parts[0]"),
    # One reply for a request.
    "chat: n": (*chat(n=2), "n must be 1"),
    "gemini: candidateCount": (*gemini(generationConfig={"candidateCount": 2}), "candidateCount"),
    # A bound on the reply that leaves none.
    "chat: max_tokens 0": (*chat(max_tokens=0), "max_tokens must be at least 1"),
    "chat: max_completion_tokens 0": (*chat(max_completion_tokens=0), "max_completion_tokens"),
    "responses: max_output_tokens 0": (*responses(max_output_tokens=0), "max_output_tokens"),
    "messages: max_tokens 0": (*messages(max_tokens=0), "max_tokens must be at least 1"),
    "gemini: maxOutputTokens 0": (*gemini(generationConfig={"maxOutputTokens": 0}), "maxOutputT"),
    # Nothing is kept between requests.
    "responses: previous_response_id": (*responses(previous_response_id="r"), "whole history"),
    "responses: conversation": (*responses(conversation="c"), "whole history"),
    "responses: prompt": (*responses(prompt={"id": "p"}), "prompt templates"),
    "responses: background": (*responses(background=True), "background"),
    "responses: item_reference": (
        *responses(input=[{"type": "item_reference", "id": "x"}]),
        "whole history",
    ),
    "chat: functions": (*chat(functions=[{"name": "run"}]), "send them as tools"),
    # Tools.
    "chat: two of one name": (*chat(tools=[function(), function()]), "two tools have the name"),
    "responses: two of one name": (*responses(tools=[RUN, RUN]), "two tools have the name"),
    "messages: two of one name": (*messages(tools=[TOOL, TOOL]), "two tools have the name"),
    "gemini: two of one name": (
        *gemini(tools=declared({"name": "run"}, {"name": "run"})),
        "two tools have the name",
    ),
    "chat: schema as text": (*chat(tools=[function(parameters="x")]), "parameters must be an obj"),
    "chat: schema of a list": (
        *chat(tools=[function(parameters={"type": "array"})]),
        'parameters.type must be "object"',
    ),
    "responses: schema as list": (*responses(tools=[RUN | {"parameters": []}]), "must be an obj"),
    "messages: no schema": (*messages(tools=[{"name": "run"}]), "input_schema must be an object"),
    "gemini: schema as text": (
        *gemini(tools=declared({"name": "run", "parameters": "x"})),
        "parameters must be an object",
    ),
    "chat: no name": (*chat(tools=[function(name="")]), "name must be a name"),
    # Conversations that nothing can answer.
    "chat: ends with the assistant": (
        *chat(messages=[USER, {"role": "assistant", "content": "I"}]),
        "ends with a message of the assistant",
    ),
    "responses: ends with the assistant": (
        *responses(input=[USER, {"role": "assistant", "content": "I"}]),
        "ends with a message of the assistant",
    ),
    "messages: ends with the assistant": (
        *messages(messages=[USER, {"role": "assistant", "content": "I"}]),
        "ends with a message of the assistant",
    ),
    "gemini: ends with the model": (
        *gemini(contents=[PARTS, PARTS | {"role": "model"}]),
        "ends with a message of the assistant",
    ),
    "chat: result without a call": (
        *chat(messages=[USER, {"role": "tool", "tool_call_id": "c", "content": "x"}]),
        "no message of the assistant before it has that call",
    ),
    "responses: result without a call": (
        *responses(input=[USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]),
        "no message of the assistant before it has that call",
    ),
    "messages: result without a call": (
        *messages(
            messages=[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]
        ),
        "no message of the assistant before it has that call",
    ),
    "gemini: result without a call": (
        *gemini(contents=[{"parts": [{"functionResponse": {"name": "run", "response": {}}}]}]),
        "no message of the assistant before it has that call",
    ),
    # Images alone.
    "chat: an image alone": (*chat(messages=[USER | {"content": [IMAGES[CHAT]]}]), "text only"),
    "responses: an image alone": (
        *responses(input=[USER | {"content": [IMAGES[RESPONSES]]}]),
        "text only",
    ),
    "messages: an image alone": (
        *messages(messages=[USER | {"content": [IMAGES[MESSAGES]]}]),
        "text only",
    ),
    "gemini: an image alone": (*gemini(contents=[{"parts": [IMAGES[GEMINI]]}]), "text only"),
}


def told_in(path: str, answer: httpx.Response) -> str:
    """The message of an error in the form of the path's dialect."""
    body = answer.json()
    if path == GEMINI:
        assert set(body) == {"error"}
        assert (body["error"]["code"], set(body["error"])) == (
            answer.status_code,
            {"code", "message", "status"},
        )
    elif path == MESSAGES:
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["message"]


@pytest.mark.parametrize("name", REFUSED)
async def test_bad_requests(name: str, script: Script, client: httpx.AsyncClient) -> None:
    path, body, message = REFUSED[name]
    answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert message in told_in(path, answer)
    assert not script.asked


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, GEMINI])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": NaN}',
        b'{"messages": 1e999}',
        b'{"model": "\xff\xfe"}',
        b'{"a":' + b"[" * 100_000,
        b'{"a":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
        b'{"a": ' + b"1" * 10_000 + b"}",
    ],
    ids=["none", "half", "list", "null", "nan", "infinite", "utf8", "deep", "deeper", "digits"],
)
async def test_bodies_that_are_no_json(
    path: str, body: bytes, script: Script, client: httpx.AsyncClient
) -> None:
    answer = await client.post(path, content=body)
    assert answer.status_code == 400
    assert told_in(path, answer)
    assert not script.asked


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    for path, headers, form in (
        ("/v1/embeddings", {}, CHAT),
        ("/v2/anything", {"anthropic-version": "2023-06-01"}, MESSAGES),
        ("/v1/messages/batches", {}, MESSAGES),
        ("/v1beta/files", {}, GEMINI),
        ("/v1beta/models/m:embedContent", {}, GEMINI),
        (f"/s/{KEY}/v1/threads", {}, CHAT),
        ("/s/" + "%00" * 20 + "/x", {}, CHAT),
    ):
        answer = await client.post(path, json={}, headers=headers)
        assert answer.status_code in (404, 405), path
        assert told_in(form, answer)
    for path in (CHAT, MESSAGES, GEMINI):
        answer = await client.get(path)
        assert answer.status_code == 405
        assert told_in(path, answer)


async def test_a_compressed_body(script: Script, client: httpx.AsyncClient) -> None:
    told = await client.post(CHAT, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert told.status_code == 400
    assert "send it as it is" in told_in(CHAT, told)


async def test_large_bodies_of_one_session_at_once() -> None:
    """More of them than are read at the same time."""
    script = Script()
    body = {**ASK, "metadata": {"x": "x" * 2 * LARGE_BYTES}}
    async with serving(script) as address, httpx.AsyncClient(timeout=120) as client:
        url = f"{address.url}/s/{KEY}{CHAT}"
        asking = (client.post(url, json=body) for _ in range(MAX_AT_ONCE + 4))
        told = await asyncio.gather(*asking)
    assert {answer.status_code for answer in told} == {200}


async def test_bodies_that_are_too_large() -> None:
    script = Script()
    async with serving(script) as address:
        half = b'{"x": "' + b"x" * (MAX_BODY_BYTES // 2)
        for size in (MAX_BODY_BYTES + 1, 100_000_000):
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.post(
                    f"{address.url}/s/{KEY}{MESSAGES}", content=half + b"x" * (size - len(half))
                )
            assert answer.status_code == 413
            assert answer.json()["error"]["type"] == "request_too_large"
        async with connected(address) as raw:
            endless = {"content-length": str(10**12), "x-api-key": KEY}
            await raw.send(post(body=b"x" * 1000, headers=endless))
        async with connected(address) as raw:
            await raw.send(post(body=ASK, headers={"x-api-key": KEY}))
            status, body = await raw.answer()
            assert (status, json.loads(body)["object"]) == (200, "chat.completion")
    assert len(script.asked) == 1
