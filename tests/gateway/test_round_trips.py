"""What a client sends back of an answer is found again as what was served, in each dialect.

Each dialect's answer is read by the official client's own types, whole and as a stream, and sent
back as that client does; the next request must continue the stored reply.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.app import CHAT, GEMINI, MESSAGES, RESPONSES
from gateway.dialects import json_value
from gateway.dialects.protocol import DialectWire, Envelope, ParsedRequest
from mainspring.programs.matching import chain, continued
from mainspring.programs.reply import Answer, Reply
from mainspring.programs.request import Role, ToolCall

Body = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
RUN = {"name": "run", "description": "Runs a command."}
_CLAUDE_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
_RESPONSE_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


class ChatClient:
    wire: DialectWire = CHAT

    def ask(self) -> Body:
        tool = {"type": "function", "function": {**RUN, "parameters": SCHEMA}}
        system = {"role": "developer", "content": "Be brief."}
        return {"messages": [system, {"role": "user", "content": "Fix it."}], "tools": [tool]}

    def echoes(self, whole: Body, events: list[Body]) -> Iterator[list[Body]]:
        message = ChatCompletion.model_validate(whole).choices[0].message
        yield [message.model_dump(exclude_none=True)]
        yield [message.model_dump()]
        state = ChatCompletionStreamState()
        for event in events:
            state.handle_chunk(ChatCompletionChunk.model_validate(event))
        (choice,) = state.current_completion_snapshot.choices
        streamed = choice.message.model_dump()
        for call in streamed.get("tool_calls") or []:
            del call["function"]["parsed_arguments"]
            call["provider_specific_fields"] = None  # as litellm adds
        yield [streamed]
        if text := streamed["content"]:  # as OpenHands writes it
            yield [streamed | {"content": [{"type": "text", "text": text}]}]

    def next(self, ask: Body, echo: list[Body], reply: Reply) -> Body:
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
            for call in echo[0].get("tool_calls") or []
        ]
        return {
            **ask,
            "messages": [*ask["messages"], *echo, *results, {"role": "user", "content": "?"}],
        }


class ResponsesClient:
    wire: DialectWire = RESPONSES

    def ask(self) -> Body:
        tools = [
            {"type": "function", **RUN, "parameters": SCHEMA},
            {"type": "custom", "name": "patch", "description": "Patches."},
            {"type": "web_search"},
        ]
        return {"instructions": "Be brief.", "input": [_said("Fix it.")], "tools": tools}

    def echoes(self, whole: Body, events: list[Body]) -> Iterator[list[Body]]:
        yield [item.model_dump() for item in Response.model_validate(whole).output]
        parsed = [_RESPONSE_EVENT.validate_python(event) for event in events]
        done = [event.item for event in parsed if event.type == "response.output_item.done"]
        yield [item.model_dump(exclude={"id", "status"}, exclude_none=True) for item in done]

    def next(self, ask: Body, echo: list[Body], reply: Reply) -> Body:
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
            for item in echo
            if "call_id" in item
        ]
        return {**ask, "input": [*ask["input"], *echo, *results, _said("?")]}


class ClaudeClient:
    wire: DialectWire = MESSAGES

    def ask(self) -> Body:
        return {
            "system": [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
            ],
            "messages": [{"role": "user", "content": "Fix it."}],
            "tools": [{**RUN, "input_schema": SCHEMA}],
        }

    def echoes(self, whole: Body, events: list[Body]) -> Iterator[list[Body]]:
        content = [block.model_dump() for block in Message.model_validate(whole).content]
        yield content
        yield [block for block in content if block["type"] != "thinking"]
        snapshot, written = None, {}
        for event in events:
            snapshot = accumulate_event(
                event=_CLAUDE_EVENT.validate_python(event),
                current_snapshot=snapshot,
                json_bufs=written,
            )
        assert snapshot is not None
        yield [block.model_dump() for block in snapshot.content]

    def next(self, ask: Body, echo: list[Body], reply: Reply) -> Body:
        blocks = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": [_block("ok")]}
            for block in echo
            if block["type"] == "tool_use"
        ]
        said = [{"role": "assistant", "content": echo}]
        answered = [{"role": "user", "content": [*blocks, _block("?")]}]
        return {**ask, "messages": [*ask["messages"], *said, *answered]}


class SplittingClaudeClient(ClaudeClient):
    """One that sends each block of a reply as a message of its own."""

    def next(self, ask: Body, echo: list[Body], reply: Reply) -> Body:
        whole = super().next(ask, echo, reply)
        said = [{"role": "assistant", "content": [block]} for block in echo]
        return {
            **whole,
            "messages": [
                *ask["messages"],
                *(said or [whole["messages"][-2]]),
                whole["messages"][-1],
            ],
        }


class GeminiClient:
    wire: DialectWire = GEMINI

    def ask(self) -> Body:
        return {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [{"role": "user", "parts": [{"text": "Fix it."}]}],
            "tools": [{"functionDeclarations": [{**RUN, "parametersJsonSchema": SCHEMA}]}],
        }

    def echoes(self, whole: Body, events: list[Body]) -> Iterator[list[Body]]:
        yield [whole["candidates"][0]["content"]]
        yield [event["candidates"][0]["content"] for event in events]

    def next(self, ask: Body, echo: list[Body], reply: Reply) -> Body:
        calls = [
            part["functionCall"]
            for content in echo
            for part in content["parts"]
            if "functionCall" in part
        ]
        results = [
            {
                "functionResponse": {
                    "id": call["id"],
                    "name": call["name"],
                    "response": {"output": "ok"},
                }
            }
            for call in calls
        ]
        answered = {"role": "user", "parts": [*results, {"text": "?"}]}
        return {**ask, "contents": [*ask["contents"], *echo, answered]}


class NamelessGeminiClient(GeminiClient):
    """One that drops the ids of calls."""

    def next(self, ask: Body, echo: list[Body], reply: Reply) -> Body:
        whole = super().next(ask, echo, reply)
        for content in whole["contents"]:
            for part in content["parts"]:
                for name in ("functionCall", "functionResponse"):
                    part.get(name, {}).pop("id", None)
        return whole


CLIENTS = {
    "chat": ChatClient(),
    "responses": ResponsesClient(),
    "messages": ClaudeClient(),
    "messages, split": SplittingClaudeClient(),
    "gemini": GeminiClient(),
    "gemini without ids": NamelessGeminiClient(),
}
FINITE = st.floats(allow_nan=False, allow_infinity=False)
OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    ),
    max_size=3,
)
VALID = OBJECTS.map(json.dumps) | st.text(max_size=20).map(lambda text: json.dumps({"input": text}))
TRICKY = st.sampled_from(
    [
        '{"arguments": "x"}',
        '{"input": 1}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": 1, "a": 2}',
        '{"a": "\\ud800"}',
        "[" * 300,
        "null",
        "",
        "{",
    ]
)
TEXTS = st.text(max_size=30) | st.sampled_from(["", "<think>no</think>", "x" * 9000, " \n a \n"])


def replies(arguments: st.SearchStrategy[str]) -> st.SearchStrategy[Reply]:
    names = st.sampled_from(["run", "patch", "no_such_tool"])
    calls = st.builds(ToolCall, name=names, arguments=arguments)
    return st.builds(
        Reply,
        text=TEXTS,
        reasoning=TEXTS,
        tool_calls=st.lists(calls, max_size=3).map(tuple),
        is_cut=st.booleans(),
    )


@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "gemini without ids"])
@settings(max_examples=40, deadline=None)
@given(reply=replies(VALID | TRICKY | st.text(max_size=20)), number=st.integers(1, 10**6))
def test_an_echo_continues_the_reply(name: str, reply: Reply, number: int) -> None:
    check_echo(CLIENTS[name], reply, number)


@settings(max_examples=40, deadline=None)
@given(reply=replies(VALID), number=st.integers(1, 10**6))
def test_an_echo_without_ids_continues_the_reply(reply: Reply, number: int) -> None:
    """Without the id it is not known that arguments were wrapped: valid ones only."""
    check_echo(CLIENTS["gemini without ids"], reply, number)


@pytest.mark.parametrize("name", CLIENTS)
def test_results_belong_to_their_calls(name: str) -> None:
    calls = tuple(ToolCall(name="run", arguments=json.dumps({"n": n})) for n in range(3))
    _, second = next(_turns(CLIENTS[name], Reply(text="", tool_calls=calls), 4))
    made = [call.id for message in second.messages for call in message.tool_calls]
    answered = [message.call_id for message in second.messages if message.role is Role.TOOL]
    assert made == answered
    assert len(set(made)) == 3


def test_a_client_that_writes_arguments_anew_continues_the_reply() -> None:
    client, reply = (
        ChatClient(),
        Reply(text="", tool_calls=(ToolCall(name="run", arguments='{"a":  1, "b": [2]}'),)),
    )
    first, second = next(_turns(client, reply, 1))
    altered = second.messages[2].tool_calls[0].model_copy(update={"arguments": '{"b":[2],"a":1}'})
    messages = list(second.messages)
    messages[2] = messages[2].model_copy(update={"tool_calls": (altered,)})
    second = second.model_copy(update={"messages": tuple(messages)})
    assert continued(chain(first)[-1], reply) == chain(second)[2]


def check_echo(client: Any, reply: Reply, number: int) -> None:
    for first, second in _turns(client, reply, number):
        links = chain(second)
        assert links[: len(first.messages)] == chain(first)
        assert continued(chain(first)[-1], reply) == links[len(first.messages)]
        assert type(second).model_validate_json(second.model_dump_json()) == second


def _turns(client: Any, reply: Reply, number: int) -> Iterator[tuple[Any, Any]]:
    ask = client.ask()
    asked = _asked(client.wire, ask)
    answer = Answer(number=number, reply=reply, num_prompt_tokens=5, num_completion_tokens=6)
    whole = json.loads(json.dumps(client.wire.body(asked, answer), allow_nan=False))
    events = [_data(event) for event in client.wire.events(asked, answer)]
    for echo in client.echoes(whole, [event for event in events if event]):
        following = client.next(ask, json.loads(json.dumps(echo)), reply)
        yield asked.request, _asked(client.wire, following).request


def _asked(wire: DialectWire, body: Body) -> ParsedRequest:
    return wire.parse(json_value.decoded(json.dumps(body).encode()), Envelope(model="m"))


def _data(event: str) -> Body | None:
    (line,) = [line for line in event.splitlines() if line.startswith("data: ")]
    return None if line == "data: [DONE]" else json.loads(line.removeprefix("data: "))


def _said(text: str) -> Body:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _block(text: str) -> Body:
    return {"type": "text", "text": text}
