"""Programs' requests at an endpoint of chat completions: what it is sent, and what comes of it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from infra.policy.protocol import (
    ANY,
    MadeReply,
    MalformedReply,
    PromptTooLong,
    ReplyRequest,
    RequestRefused,
)
from infra.policy.replies.endpoint_errors import EndpointBusy, EndpointFailing, PolicyRefused
from infra.policy.replies.openai import OpenAIClient
from infra.policy.replies.text_policy import TextPolicy
from mainspring.config.policy import PolicyConfig
from mainspring.ids import RolloutId
from mainspring.programs.estimate import tokens_of_messages, tokens_of_request
from mainspring.programs.matching import StoredCall
from mainspring.programs.reply import Finish
from mainspring.programs.request import ChatMessage, Dialect, ModelRequest, Role, ToolCall, ToolSpec
from tests.chat_endpoint import CONTEXT_FULL, Endpoint, calling, chat_endpoint, completion

KEY = "sk-very-secret"
RUN = ToolSpec(name="run", description="Runs.", parameters={"type": "object", "properties": {}})
ASKED = ChatMessage(role=Role.USER, text="fix it")


class Program:
    """Asks for one reply after the other, as the activity does."""

    def __init__(self, endpoint: Endpoint, **config: Any) -> None:
        config = {"max_context": 4000, "max_new_tokens": 500, "model": "m1", **config}
        self.client = OpenAIClient(PolicyConfig(engines=(endpoint.url,), **config), SecretStr(KEY))
        self.policy = TextPolicy(PolicyConfig(**config), self.client)
        self.stored: list[StoredCall] = []

    async def ask(
        self, *messages: ChatMessage, max_tokens: int | None = None, seed: int | None = None
    ) -> MadeReply:
        made = await self.policy.complete(
            ReplyRequest(
                number=len(self.stored),
                request=request(*messages, max_tokens=max_tokens),
                stored=self.stored,
                rollout=RolloutId("r"),
                request_id="r",
                temperature=0.5,
                versions=ANY,
                seed=seed,
            )
        )
        self.stored.append(StoredCall(made.call, made.history))
        return made

    async def count(self, *messages: ChatMessage) -> int:
        async def stored() -> list[StoredCall]:
            return self.stored

        return await self.policy.count(request(*messages), stored)


def request(*messages: ChatMessage, max_tokens: int | None = None) -> ModelRequest:
    return ModelRequest(
        dialect=Dialect.CHAT, model="any", messages=messages, tools=(RUN,), max_tokens=max_tokens
    )


def echo(made: MadeReply, *ids: str) -> ChatMessage:
    """With ids of the client's own."""
    calls = zip(made.reply.tool_calls, ids, strict=True)
    return ChatMessage(
        role=Role.ASSISTANT,
        text=made.reply.text,
        tool_calls=tuple(call.model_copy(update={"id": id}) for call, id in calls),
    )


def result(text: str, call_id: str) -> ChatMessage:
    return ChatMessage(role=Role.TOOL, text=text, call_id=call_id)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with chat_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def program(endpoint: Endpoint) -> AsyncIterator[Program]:
    program = Program(endpoint)
    yield program
    await program.client.aclose()


async def test_a_conversation_with_tools_is_sent_as_chat_completions(
    endpoint: Endpoint, program: Program
) -> None:
    endpoint.reply = lambda messages: calling(
        "run", '{"command": "ls"}', content="I look.", reasoning_content="What is there?"
    )
    first = await program.ask(ASKED, max_tokens=100, seed=7)
    assert first.reply.text == "I look." and first.reply.reasoning == "What is there?"
    assert first.reply.tool_calls == (ToolCall(name="run", arguments='{"command": "ls"}'),)
    assert first.reply.finish is Finish.TOOL_CALLS
    assert (first.call.num_prompt_tokens, first.call.num_completion_tokens) == (2, 2)
    assert first.call.completion_ids == () and first.call.parts == first.reply
    assert "What is there?" in first.call.text and '"command": "ls"' in first.call.text
    *_, body = endpoint.asked
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m1", 0.5, 100)
    assert body["seed"] == 7
    [tool] = body["tools"]
    assert tool == {"type": "function", "function": RUN.model_dump()}

    endpoint.reply = lambda messages: "done"
    history = (ASKED, echo(first, "made-up-id-1" * 9), result("calc.py", "made-up-id-1" * 9))
    second = await program.ask(*history)
    assert second.call.parent == 0 and second.reply.finish is Finish.STOP
    *_, body = endpoint.asked
    asked, said, told = body["messages"]
    assert asked == {"role": "user", "content": "fix it"}
    assert said["content"] == "I look." and "reasoning_content" not in said
    [call] = said["tool_calls"]
    assert call["function"] == {"name": "run", "arguments": '{"command": "ls"}'}
    assert told == {"role": "tool", "tool_call_id": call["id"], "content": "calc.py"}
    assert len(call["id"]) == 9 and call["id"].isalnum()
    assert "seed" not in body
    # Another life makes up other ids, and asks the endpoint the same.
    again = (ASKED, echo(first, "other"), result("calc.py", "other"))
    assert (await program.ask(*again)).history == second.history
    assert endpoint.asked[-1]["messages"] == body["messages"]


async def test_several_calls_and_arguments_that_are_no_json(
    endpoint: Endpoint, program: Program
) -> None:
    broken, message = '{"command": "l', calling("run", '{"n": 1}')
    message["tool_calls"] += calling("run", broken)["tool_calls"]
    message["tool_calls"] += calling("run", "")["tool_calls"]
    endpoint.reply = lambda messages: message
    first = await program.ask(ASKED)
    assert [call.arguments for call in first.reply.tool_calls] == ['{"n": 1}', broken, ""]
    results = (result("1", "c"), result("2", "a"), result("3", "b"))
    second = await program.ask(ASKED, echo(first, "a", "b", "c"), *results)
    assert second.call.parent == 0
    _, said, *told = endpoint.asked[-1]["messages"]
    ids = [call["id"] for call in said["tool_calls"]]
    assert said["content"] is None and len(set(ids)) == 3
    assert [each["tool_call_id"] for each in told] == [ids[2], ids[0], ids[1]]
    sent = [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]]
    assert sent == [{"n": 1}, {"arguments": broken}, {}]


@pytest.mark.parametrize(
    ("message", "text", "reasoning", "calls"),
    [
        ({"content": None}, "", "", []),
        ({"content": "", "tool_calls": None, "reasoning": "hm"}, "", "hm", []),
        ({"content": "a\ud800b", "reasoning_content": 7}, "a?b", "", []),
        ({"content": "<tool_call>no</tool_call>"}, "<tool_call>no</tool_call>", "", []),
        (
            {"content": None, "tool_calls": [{"function": {"name": "run", "arguments": {"a": 1}}}]},
            *("", "", ['{"a": 1}']),
        ),
        ({"content": None, "tool_calls": [{"function": {"name": "run"}}]}, "", "", ["{}"]),
    ],
)
async def test_what_an_endpoint_gives_is_the_reply(
    endpoint: Endpoint, program: Program, message: Any, text: str, reasoning: str, calls: list[str]
) -> None:
    endpoint.script.append((200, {}, completion(message)))
    reply = (await program.ask(ASKED)).reply
    assert (reply.text, reply.reasoning) == (text, reasoning)
    assert [call.arguments for call in reply.tool_calls] == calls


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": {"function": {}}},
        {"content": None, "tool_calls": [{"function": {"name": ""}}]},
        {"content": None, "tool_calls": [{"type": "function"}]},
        {"content": None, "tool_calls": ["run"]},
        {"content": 7},
    ],
)
async def test_a_reply_of_another_shape_is_malformed(
    endpoint: Endpoint, program: Program, message: Any
) -> None:
    endpoint.script.append((200, {}, completion(message)))
    with pytest.raises(MalformedReply):
        await program.ask(ASKED)


@pytest.mark.parametrize(
    ("said", "num_tokens", "limit"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 "
            "tokens (8000 in the messages, 1000 in the completion).",
            *(9000, 8192),
        ),
        ("The input (9000 tokens) is longer than the context length (8192 tokens).", 9000, 8192),
        ("prompt is too long: 300000 tokens > 200000 maximum", 300_000, 200_000),
        ("request (5000 tokens) exceeds the available context size (4096 tokens)", 5000, 4096),
        (
            "The input token count (12000) exceeds the maximum number of tokens allowed (10000).",
            *(12_000, 10_000),
        ),
        ("This model's maximum context length is 8192 tokens.", 8193, 8192),
        ("the context window is full", 4001, 4000),
    ],
)
async def test_a_prompt_too_long_has_the_numbers_that_are_told(
    endpoint: Endpoint, program: Program, said: str, num_tokens: int, limit: int
) -> None:
    for body in ({"error": {"message": said, "code": 400}}, {"message": said}, said):
        endpoint.script.append((400, {}, body))
        with pytest.raises(PromptTooLong) as caught:
            await program.ask(ASKED)
        assert (caught.value.num_tokens, caught.value.max_tokens) == (num_tokens, limit)


async def test_what_bounds_a_reply(endpoint: Endpoint, program: Program) -> None:
    """The endpoint's own counts; of what it has not counted an estimate, which refuses nothing."""
    endpoint.script.append((200, {}, usage(2000, 200)))
    first = await program.ask(ASKED)
    assert endpoint.asked[-1]["max_tokens"] == 500
    long = result("x" * 4 * 1500, "none")
    await program.ask(ASKED, echo(first), long)
    assert endpoint.asked[-1]["max_tokens"] == 4000 - 2200 - tokens_of_messages([long])
    await program.ask(ASKED, echo(first), result("x" * 90_000, "none"))
    assert endpoint.asked[-1]["max_tokens"] == 500
    endpoint.script.append((200, {}, usage(3900, 95)))
    full = await program.ask(ASKED, echo(first), ChatMessage(role=Role.USER, text="go on"))
    with pytest.raises(PromptTooLong) as caught:
        await program.ask(
            *(ASKED, echo(first), ChatMessage(role=Role.USER, text="go on"), echo(full), long)
        )
    assert caught.value.num_tokens > caught.value.max_tokens == 4000


def usage(num_prompt: int, num_reply: int) -> object:
    counts = {"prompt_tokens": num_prompt, "completion_tokens": num_reply}
    return completion({"role": "assistant", "content": "ok"}, usage=counts)


async def test_tokens_are_counted_by_the_endpoint_where_it_did_and_estimated_else(
    endpoint: Endpoint, program: Program
) -> None:
    long = ChatMessage(role=Role.USER, text="word " * 800)
    assert await program.count(long) == tokens_of_request(request(long)) > 1000
    endpoint.script.append((200, {}, usage(777, 3)))
    made = await program.ask(long)
    more = ChatMessage(role=Role.USER, text="go on")
    assert await program.count(long, echo(made), more) == 780 + tokens_of_messages([more])
    endpoint.script.append((200, {}, completion({"content": "uncounted"})))
    bare = await program.ask(ASKED)
    asked = (ASKED, echo(bare), more)
    assert await program.count(*asked) == tokens_of_request(request(*asked))
    assert len(endpoint.asked) == 2


async def test_a_request_that_is_refused_is_the_programs_matter_and_a_key_is_not(
    endpoint: Endpoint, program: Program
) -> None:
    for status in (400, 413, 422):
        endpoint.script.append((status, {}, {"error": {"message": f"no tools for {KEY}"}}))
        with pytest.raises(RequestRefused, match=r"no tools for \*\*\*") as refused:
            await program.ask(ASKED)
        assert endpoint.url not in refused.value.message
    for status, body in ((401, "no"), (403, "no"), (404, "no"), (429, "insufficient_quota")):
        endpoint.script.append((status, {}, body))
        with pytest.raises(PolicyRefused):
            await program.ask(ASKED)
    assert program.stored == []


async def test_faults_that_may_pass(endpoint: Endpoint, program: Program) -> None:
    endpoint.script.append((429, {"Retry-After": "7"}, "slow down"))
    with pytest.raises(EndpointBusy) as busy:
        await program.ask(ASKED)
    assert busy.value.retry_after_s == 7.0
    endpoint.script.extend([(500, {}, "oops"), (200, {"Content-Length": "5000"}, "{")])
    for _ in range(2):
        with pytest.raises(EndpointFailing):
            await program.ask(ASKED)
    endpoint.script.append((200, {}, "<html>a login page</html>"))
    with pytest.raises(MalformedReply):
        await program.ask(ASKED)


async def test_a_prompt_cannot_change_the_name_of_the_limit_for_others(
    endpoint: Endpoint, program: Program
) -> None:
    """Some servers repeat the prompt in their errors."""
    said = (400, {}, {"error": {"message": "bad message: 'max_completion_tokens'"}})
    endpoint.script.extend([said, said])
    with pytest.raises(RequestRefused):
        await program.ask(ASKED)
    await program.ask(ASKED)
    assert "max_tokens" in endpoint.asked[-1]


async def test_a_full_context_is_told_as_one_error(endpoint: Endpoint, program: Program) -> None:
    endpoint.script.append((400, {}, CONTEXT_FULL))
    with pytest.raises(PromptTooLong, match="0 of 8192 tokens are left"):
        await program.ask(ASKED)
