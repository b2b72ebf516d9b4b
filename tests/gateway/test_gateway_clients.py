"""Every route with the official clients, streaming and not; errors are of their own types."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import httpx
import openai
import pytest
from scripted_answers import KEY, Script, calling, serving

from gateway.protocol import ProgramPromptTooLong, SessionOver, UnrenderableRequest
from mainspring.errors import DatabaseError
from mainspring.programs.profile import MODEL_NAME
from mainspring.programs.reply import Reply
from mainspring.programs.request import Role

LONG = "x y\n" * 5000
"""More than one event's text."""
REPLIES = {
    "text": Reply(text=LONG),
    "thought": Reply(text="Yes.", reasoning="Is it? " * 2000),
    "call": calling("run", '{"command": "ls"}', text="I look.", reasoning="What is there?"),
    "bare call": calling("run", '{"command": "ls"}'),
    "empty": Reply(text=""),
    "cut": Reply(text="I sta", is_cut=True),
}
CHAT_TOOL = {"name": "run", "description": "Runs.", "parameters": {"type": "object"}}
ASK = {"model": "any-name", "messages": [{"role": "user", "content": "Fix it."}]}


@asynccontextmanager
async def clients(
    script: Script, key: str = KEY
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic, httpx.AsyncClient]]:
    async with serving(script) as address:
        base = f"{address.url}/v1"
        async with (
            openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as chat,
            anthropic.AsyncAnthropic(base_url=address.url, api_key=key, max_retries=0) as claude,
            httpx.AsyncClient(base_url=address.url, headers={"x-goog-api-key": key}) as gemini,
        ):
            yield chat, claude, gemini


@pytest.mark.parametrize("name", REPLIES)
async def test_chat(name: str) -> None:
    reply, script = REPLIES[name], Script(default=REPLIES[name])
    tools = [{"type": "function", "function": CHAT_TOOL}]
    async with clients(script) as (client, _, _):
        whole = await client.chat.completions.create(**ASK, tools=tools)
        stream = client.chat.completions.stream(
            **ASK, tools=tools, stream_options={"include_usage": True}
        )
        async with stream as events:
            try:
                streamed = await events.get_final_completion()
            except openai.LengthFinishReasonError as cut:  # the package's way to tell length
                streamed = cut.completion
        plain = await client.chat.completions.create(**ASK, stream=True)
        assert [chunk.usage for chunk in [each async for each in plain]].count(None) > 0
    type(whole).model_validate(whole.model_dump(), strict=True)
    for told in (whole, streamed):
        (choice,) = told.choices
        assert (choice.message.content or "") == reply.text
        assert getattr(choice.message, "reasoning_content", "") == reply.reasoning
        calls = choice.message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            (call.name, call.arguments) for call in reply.tool_calls
        ]
        assert [call.id for call in calls] == [
            f"call_{1 if told is whole else 2}_{i}" for i in range(len(calls))
        ]
        assert choice.finish_reason == reply.finish.value
        assert told.model == "any-name"
        assert told.usage is not None
        assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (7, 3)
    assert script.request.tools == ()
    assert script.asked[0][1].tools[0].name == "run"


@pytest.mark.parametrize("name", REPLIES)
async def test_responses(name: str) -> None:
    reply, script = REPLIES[name], Script(default=REPLIES[name])
    ask = {"model": "any-name", "input": "Fix it.", "instructions": "Be brief."}
    ask["tools"] = [{"type": "function", **CHAT_TOOL, "strict": False}]
    async with clients(script) as (client, _, _):
        whole = await client.responses.create(**ask)
        async with client.responses.stream(**ask) as events:
            streamed = await events.get_final_response()
    type(whole).model_validate(whole.model_dump(warnings=False), strict=False)
    for told in (whole, streamed):
        assert told.status == "completed", "Codex ends its run at an incomplete one"
        assert told.output_text == reply.text
        thoughts = [item for item in told.output if item.type == "reasoning"]
        assert "".join(item.content[0].text for item in thoughts) == reply.reasoning
        calls = [item for item in told.output if item.type == "function_call"]
        assert [(call.name, call.arguments) for call in calls] == [
            (call.name, call.arguments) for call in reply.tool_calls
        ]
        assert (told.usage.input_tokens, told.usage.output_tokens) == (7, 3)
    assert [message.role for message in script.request.messages] == [Role.SYSTEM, Role.USER]


@pytest.mark.parametrize("name", REPLIES)
async def test_messages(name: str) -> None:
    reply, script = REPLIES[name], Script(default=REPLIES[name])
    ask = {**ASK, "max_tokens": 100, "system": "Be brief."}
    ask["tools"] = [{"name": "run", "input_schema": {"type": "object"}}]
    async with clients(script) as (_, client, _):
        whole = await client.messages.create(**ask)
        async with client.messages.stream(**ask) as events:
            streamed = await events.get_final_message()
        counted = await client.messages.count_tokens(
            **{name: value for name, value in ask.items() if name != "max_tokens"}
        )
    type(whole).model_validate(whole.model_dump(), strict=True)
    finishes = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    for told in (whole, streamed):
        assert told.stop_reason == finishes[reply.finish.value]
        blocks = [block.type for block in told.content]
        assert "".join(b.text for b in told.content if b.type == "text") == reply.text
        assert "".join(b.thinking for b in told.content if b.type == "thinking") == reply.reasoning
        calls = [block for block in told.content if block.type == "tool_use"]
        assert [(call.name, call.input) for call in calls] == [
            (call.name, json.loads(call.arguments)) for call in reply.tool_calls
        ]
        assert all(b.signature for b in told.content if b.type == "thinking")
        assert blocks == sorted(blocks, key=("thinking", "text", "tool_use").index)
        assert (told.usage.input_tokens, told.usage.output_tokens) == (7, 3)
    assert counted.input_tokens == 4
    assert script.request.max_tokens == 100


@pytest.mark.parametrize("name", REPLIES)
async def test_gemini(name: str) -> None:
    reply, script = REPLIES[name], Script(default=REPLIES[name])
    ask = {
        "contents": [{"role": "user", "parts": [{"text": "Fix it."}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{"name": "run", "parameters": {"type": "OBJECT"}}]}],
        "generationConfig": {"maxOutputTokens": 50},
    }
    path = "/v1beta/models/any/name"
    async with clients(script) as (_, _, client):
        whole = (await client.post(f"{path}:generateContent", json=ask)).json()
        sse = await client.post(f"{path}:streamGenerateContent?alt=sse", json=ask)
        array = (await client.post(f"{path}:streamGenerateContent", json=ask)).json()
        counted = (await client.post(f"{path}:countTokens", json=ask)).json()
    events = [json.loads(line[6:]) for line in sse.text.splitlines() if line]
    for told in ([whole], events, array):
        parts = [part for each in told for part in each["candidates"][0]["content"]["parts"]]
        shown = [part for part in parts if "text" in part]
        assert "".join(part["text"] for part in shown if not part.get("thought")) == reply.text
        assert "".join(part["text"] for part in shown if part.get("thought")) == reply.reasoning
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert [(call["name"], call["args"]) for call in calls] == [
            (call.name, json.loads(call.arguments)) for call in reply.tool_calls
        ]
        finishes = [each["candidates"][0].get("finishReason") for each in told]
        assert finishes[-1] == ("MAX_TOKENS" if reply.is_cut else "STOP")
        assert set(finishes[:-1]) <= {None}
        assert told[-1]["usageMetadata"]["totalTokenCount"] == 10
    assert counted == {"totalTokens": 4}
    assert script.request.model == "any/name"
    assert script.request.max_tokens == 50
    assert script.request.tools[0].parameters == {"type": "object"}


async def test_custom_tools_take_text() -> None:
    script = Script(default=calling("apply_patch", '{"input": "*** Begin"}'))
    ask = {"model": "m", "input": "Fix it."}
    ask["tools"] = [{"type": "custom", "name": "apply_patch", "description": "Patches."}]
    async with clients(script) as (client, _, _):
        whole = await client.responses.create(**ask)
        async with client.responses.stream(**ask) as events:
            kinds = [event.type async for event in events]
            streamed = await events.get_final_response()
    for told in (whole, streamed):
        (item,) = told.output
        assert (item.type, item.name, item.input) == (
            "custom_tool_call",
            "apply_patch",
            "*** Begin",
        )
    assert "response.custom_tool_call_input.delta" in kinds
    assert script.request.tools[0].parameters["required"] == ["input"]


async def test_models_are_listed_for_each_client() -> None:
    async with clients(Script()) as (chat, claude, gemini):
        (listed,) = (await chat.models.list()).data
        assert (listed.id, listed.model_extra["context_length"]) == (MODEL_NAME, 8192)
        assert (await chat.models.retrieve("any/name:x")).id == "any/name:x"
        (listed,) = (await claude.models.list()).data
        assert (listed.id, listed.type) == (MODEL_NAME, "model")
        listed = (await gemini.get("/v1beta/models")).json()["models"]
        assert listed[0]["inputTokenLimit"] == 8192
        for method in ("HEAD", "GET"):
            assert (await gemini.request(method, "/")).status_code == 200


FAULTS = [
    (UnrenderableRequest("the template takes no tools"), openai.BadRequestError, 400),
    (ProgramPromptTooLong(9000, 8192), openai.BadRequestError, 400),
    (DatabaseError("no route to db.internal:5432"), openai.InternalServerError, 503),
    (RuntimeError("/home/secret/path"), openai.InternalServerError, 500),
]


@pytest.mark.parametrize(
    "fault, kind, status", FAULTS, ids=[type(each[0]).__name__ for each in FAULTS]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_faults_are_errors_of_the_clients_own(
    fault: Exception, kind: type[openai.APIStatusError], status: int, stream: bool
) -> None:
    script = Script(default=Reply(text=""))
    script.replies.extend([fault] * 4)
    async with clients(script) as (chat, claude, gemini):
        with pytest.raises(kind) as told:
            await chat.chat.completions.create(**ASK, stream=stream)
        with pytest.raises(getattr(anthropic, kind.__name__)) as claude_told:
            await claude.messages.create(**ASK, max_tokens=9, stream=stream)
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        ask = {"contents": [{"parts": [{"text": "Fix it."}]}]}
        gemini_told = await gemini.post(f"/v1beta/models/m:{verb}", json=ask)
    assert told.value.status_code == claude_told.value.status_code == status
    assert gemini_told.status_code == status == gemini_told.json()["error"]["code"]
    for text in (str(told.value), str(claude_told.value), gemini_told.text):
        assert "secret" not in text and "internal:5432" not in text and "rollout one" not in text
    if isinstance(fault, ProgramPromptTooLong):
        assert told.value.code == "context_length_exceeded"
        assert "maximum context length is 8192" in str(told.value)
        words = "prompt is too long: 9000 tokens > 8192 maximum"
        assert claude_told.value.body["error"] == {
            "type": "invalid_request_error",
            "message": words,
        }


async def test_the_end_of_a_session_is_told_so_that_clients_stop() -> None:
    """Seen: Codex asks again after a 403, mini-swe-agent after a 400 and a 403."""
    script = Script()
    script.replies.extend([SessionOver("rollout one has ended")] * 4)
    async with clients(script) as (chat, claude, gemini):
        with pytest.raises(openai.AuthenticationError) as chat_told:
            await chat.chat.completions.create(**ASK)
        with pytest.raises(anthropic.PermissionDeniedError) as claude_told:
            await claude.messages.create(**ASK, max_tokens=9, stream=True)
        with pytest.raises(openai.BadRequestError) as codex_told:
            await chat.responses.create(model="m", input="Fix it.", stream=True)
        path = "/v1beta/models/m:generateContent"
        told = await gemini.post(path, json={"contents": [{"parts": [{"text": "Fix it."}]}]})
    assert chat_told.value.code == codex_told.value.code == "session_over"
    assert told.json()["error"]["status"] == "PERMISSION_DENIED"
    for headers in (chat_told.value.response.headers, claude_told.value.response.headers):
        assert headers["x-should-retry"] == "false"


async def test_an_answer_that_cannot_be_written_is_a_fault_of_the_dialect(
    script: Script, client: httpx.AsyncClient
) -> None:
    script.default = Reply.model_construct(text=object(), reasoning="", tool_calls=(), is_cut=False)
    for stream in (False, True):
        told = await client.post("/v1/chat/completions", json={**ASK, "stream": stream})
        assert told.status_code == 500
        assert told.json()["error"]["type"] == "server_error"
        told = await client.post("/v1/messages", json={**ASK, "stream": stream})
        assert told.status_code == 500
        assert told.json()["error"]["type"] == "api_error"
    assert script.told == []


async def test_codex_knows_a_full_context() -> None:
    """By an event: a 400 tells it nothing."""
    script = Script()
    script.replies.extend([ProgramPromptTooLong(9000, 8192), ProgramPromptTooLong(9, 8)])
    async with clients(script) as (client, _, _):
        stream = await client.responses.create(model="m", input="Fix it.", stream=True)
        (event,) = [event async for event in stream]
        assert event.type == "response.failed"
        assert event.response.error.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as told:
            await client.responses.create(model="m", input="Fix it.")
        assert told.value.code == "context_length_exceeded"


async def test_a_wrong_key_is_an_authentication_error() -> None:
    script = Script()
    async with clients(script, key="no-such-key") as (chat, claude, gemini):
        for ask in (
            chat.chat.completions.create(**ASK),
            chat.responses.create(model="m", input="x" * 300_000),
            chat.models.list(),
        ):
            with pytest.raises(openai.AuthenticationError):
                await ask
        with pytest.raises(anthropic.AuthenticationError):
            await claude.messages.create(**ASK, max_tokens=9)
        told = await gemini.post("/v1beta/models/m:generateContent", json={})
        assert told.json()["error"]["status"] == "UNAUTHENTICATED"
        nothing = await gemini.post(
            "/v1/chat/completions", json=ASK, headers={"x-goog-api-key": ""}
        )
        assert nothing.status_code == 401
        script.fault = DatabaseError("cannot reach db.internal")
        with pytest.raises(openai.InternalServerError) as failed:
            await chat.chat.completions.create(**ASK)
        assert "internal" not in str(failed.value)
    assert not script.asked


async def test_keys_in_paths_and_headers() -> None:
    script = Script()
    async with serving(script) as address, httpx.AsyncClient() as client:
        routes = [
            (f"/s/{KEY}/v1/chat/completions", {"authorization": "Bearer sk-none"}),
            ("/v1/chat/completions", {"authorization": f"bearer {KEY}"}),
            ("/v1/chat/completions", {"x-api-key": KEY}),
            ("/v1/chat/completions", {"x-goog-api-key": KEY}),
            (f"/v1/chat/completions?key={KEY}", {}),
        ]
        for path, headers in routes:
            told = await client.post(address.url + path, json=ASK, headers=headers)
            assert told.status_code == 200, (path, told.text)
        for path in (f"/s/{KEY}", f"/s/{KEY}/"):
            assert (await client.head(address.url + path)).status_code == 200
        nowhere = await client.get(f"{address.url}/s/{KEY}/v1/nothing")
        assert nowhere.status_code == 404
    assert [asked[0].rollout for asked in script.asked] == ["one"] * 5


async def test_a_retry_is_marked() -> None:
    script = Script()
    script.replies.append(DatabaseError("down for the moment"))
    async with serving(script) as address:
        client = openai.AsyncOpenAI(base_url=f"{address.url}/v1", api_key=KEY, max_retries=2)
        async with client:
            await client.chat.completions.create(**ASK)
    assert [is_retry for _, _, is_retry in script.asked] == [False, True]
