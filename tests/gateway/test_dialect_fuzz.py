"""Any body gets an answer or an error of its dialect: never a 500, never a traceback."""

import copy
import json
from typing import Any

import httpx
import pytest
from anthropic.types import ErrorResponse, Message
from dialect_bodies import (
    CHAT,
    GEMINI,
    MESSAGES,
    RESPONSES,
    RUN,
    TOOL,
    chat,
    declared,
    function,
    gemini,
    messages,
    responses,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from scripted_answers import Script, calling

from mainspring.programs.request import ModelRequest

CALL = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c", "name": "run", "input": {"a": 1}}
SAID = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
VALID: dict[str, dict[str, Any]] = {
    CHAT: chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            SAID,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ],
        tools=[function(parameters={"type": "object"})],
        max_tokens=9,
        stream=False,
        stream_options={"include_usage": True},
    )[1],
    RESPONSES: responses(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Go."}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
            {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": [SAID["content"][0]]},
            {"type": "local_shell_call", "call_id": "e", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "call_id": "e", "output": "ok"},
        ],
        tools=[RUN, {"type": "custom", "name": "patch"}],
        max_output_tokens=9,
        stream=False,
    )[1],
    MESSAGES: messages(
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            SAID,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "?"}, USE]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ],
        tools=[TOOL],
        stream=False,
    )[1],
    GEMINI: gemini(
        systemInstruction={"parts": [{"text": "Be brief."}]},
        contents=[
            {"role": "user", "parts": [{"text": "Go."}]},
            {"role": "model", "parts": [{"functionCall": {"name": "run", "args": {"a": 1}}}]},
            {"parts": [{"functionResponse": {"name": "run", "response": {"output": "ok"}}}]},
        ],
        tools=declared({"name": "run", "parameters": {"type": "OBJECT"}}),
        generationConfig={"maxOutputTokens": 9},
    )[1],
}
NAMES = st.sampled_from(["role", "content", "type", "text", "parts", "id"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "tool", "text", "function", "object", "c", "image"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "parts", "id"]), inner
        )
    ),
    max_leaves=8,
)
IN_PROCESS = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inner:
            found += _places(each, (*path, key))
    return found


@st.composite
def _altered(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A valid body in which some values are others, are left out or stand twice."""
    body = copy.deepcopy(VALID[path])
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(_places(body)))
        inner: Any = body
        for key in way:
            inner = inner[key]
        change = draw(st.sampled_from(["replace", "drop", "repeat"]))
        if change == "drop":
            del inner[last]
        elif change == "repeat" and isinstance(inner, list):
            inner.append(copy.deepcopy(inner[last]))
        else:
            inner[last] = draw(VALUES)
        if not body:
            break
    return body


def _check(path: str, told: httpx.Response, script: Script) -> None:
    assert told.status_code in (200, 400), told.text
    for word in ("Traceback", 'File "', "/gateway/"):
        assert word not in told.text
    if told.headers["content-type"].startswith("text/event-stream"):
        assert told.text.endswith("\n\n")
        return
    body = told.json()
    if told.status_code == 400:
        if path == MESSAGES:
            ErrorResponse.model_validate(body)
        assert isinstance(body["error"]["message"], str)
        return
    if path == CHAT:
        ChatCompletion.model_validate(body, strict=True)
    elif path == RESPONSES:
        assert Response.model_validate(body).status == "completed"
    elif path == MESSAGES:
        Message.model_validate(body, strict=True)
    else:
        assert body["candidates"][0]["finishReason"] == "STOP"
    request = script.request
    assert ModelRequest.model_validate_json(request.model_dump_json()) == request


async def _ask(client: httpx.AsyncClient, script: Script, path: str, body: bytes) -> None:
    script.asked.clear()
    script.default = calling("patch", '{"a": 1}', text="I look.")
    _check(path, await client.post(path, content=body), script)


@pytest.mark.parametrize("path", VALID)
async def test_valid_bodies_are_answered(
    path: str, script: Script, client: httpx.AsyncClient
) -> None:
    for stream in (False, True):
        await _ask(client, script, path, json.dumps({**VALID[path], "stream": stream}).encode())
        assert len(script.asked) == 1


@pytest.mark.parametrize("path", VALID)
@IN_PROCESS
@given(data=st.data())
async def test_altered_bodies(
    path: str, data: st.DataObject, script: Script, client: httpx.AsyncClient
) -> None:
    body = data.draw(_altered(path))
    await _ask(client, script, path, json.dumps(body).encode())


@pytest.mark.parametrize("path", VALID)
@IN_PROCESS
@given(body=VALUES | st.dictionaries(st.sampled_from([*"ab", "messages", "input"]), VALUES))
async def test_any_json(path: str, body: Any, script: Script, client: httpx.AsyncClient) -> None:
    await _ask(client, script, path, json.dumps(body).encode())


@IN_PROCESS
@given(
    path=st.sampled_from(list(VALID)),
    where=st.floats(0, 1),
    patch=st.binary(max_size=6),
    num_cut=st.integers(0, 6),
)
async def test_altered_bytes(
    path: str,
    where: float,
    patch: bytes,
    num_cut: int,
    script: Script,
    client: httpx.AsyncClient,
) -> None:
    data = json.dumps(VALID[path]).encode()
    at = int(where * len(data))
    await _ask(client, script, path, data[:at] + patch + data[at + num_cut :])
