"""The client against a real server that answers as endpoints do, well and badly."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count

import pytest
from pydantic import SecretStr

from infra.policy.engines.balancer import Balancer, EngineMember
from infra.policy.protocol import ContextFull, MalformedReply
from infra.policy.replies.endpoint_errors import (
    EndpointBusy,
    EndpointFailing,
    PolicyRefused,
)
from infra.policy.replies.openai import OpenAIClient
from mainspring.config.policy import PolicyConfig
from mainspring.errors import EngineError
from tests.chat_endpoint import CONTEXT_FULL, Endpoint, chat_endpoint

KEY = "sk-very-secret"
NOWHERE = "http://127.0.0.1:9/v1"
"""The discard port: nothing listens."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with chat_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def client(endpoint: Endpoint) -> AsyncIterator[OpenAIClient]:
    client = client_of(endpoint.url)
    yield client
    await client.aclose()


def client_of(*engines: str) -> OpenAIClient:
    return OpenAIClient(PolicyConfig(model="m1", engines=engines), SecretStr(KEY))


def first_at(first: str, *others: str) -> str:
    """A rollout whose requests go to `first` where all endpoints are free."""
    balancer = Balancer([EngineMember.at(url) for url in (first, *others)])
    return next(key for key in map(str, count()) if balancer.candidates(key)[0] == first)


async def ask(client: OpenAIClient, num_taken: int = 0, sticky: str = "r"):
    return await client.complete(
        [{"role": "user", "content": "one two"}],
        max_tokens=50,
        temperature=0.5,
        sticky=sticky,
        num_taken=num_taken,
    )


async def test_a_reply_with_its_counts(endpoint: Endpoint, client: OpenAIClient) -> None:
    endpoint.reply = lambda messages: "three words here"
    reply = await ask(client)
    assert (reply.text, reply.finish_reason) == ("three words here", "stop")
    assert (reply.num_prompt_tokens, reply.num_completion_tokens) == (2, 3)
    assert reply.latency_s > 0
    assert endpoint.asked == [
        {
            "model": "m1",
            "messages": [{"role": "user", "content": "one two"}],
            "temperature": 0.5,
            "max_tokens": 50,
        }
    ]
    assert endpoint.keys == [f"Bearer {KEY}"]


async def test_a_reply_without_text_or_counts(endpoint: Endpoint, client: OpenAIClient) -> None:
    """A reasoning model that used up its tokens, behind a server that does not count."""
    choice = {"message": {"role": "assistant", "content": None}, "finish_reason": "length"}
    endpoint.script.append((200, {}, {"choices": [choice]}))
    reply = await ask(client)
    assert (reply.text, reply.finish_reason, reply.num_prompt_tokens) == ("", "length", None)


async def test_models_that_know_the_limit_by_its_new_name(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    endpoint.script.append((400, {}, {"error": {"message": said}}))
    await ask(client)
    await ask(client)
    limits = [
        sorted(body.keys() & {"max_tokens", "max_completion_tokens"}) for body in endpoint.asked
    ]
    assert limits == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


async def test_busy_says_how_long_to_wait(endpoint: Endpoint, client: OpenAIClient) -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    endpoint.script.extend(
        [
            (429, {"Retry-After": "7"}, {"error": {"message": "slow down"}}),
            (503, {"Retry-After": in_a_minute}, ""),
            (502, {}, "oops"),
            (429, {"Retry-After": "1e9"}, ""),
        ]
    )
    waits = []
    for _ in range(4):
        with pytest.raises(EndpointBusy) as caught:
            await ask(client)
        waits.append(caught.value.retry_after_s)
    assert waits == [7.0, pytest.approx(60, abs=5), None, 3600.0]


async def test_another_endpoint_is_asked_when_one_is_busy_or_gone(endpoint: Endpoint) -> None:
    with chat_endpoint() as busy:
        busy.script.append((429, {}, "later"))
        client = client_of(NOWHERE, busy.url, endpoint.url)
        key = first_at(NOWHERE, busy.url, endpoint.url)
        assert (await ask(client, sticky=key)).text == "ok"
        assert len(busy.asked) == len(endpoint.asked) == 1
        await client.aclose()
    client = client_of(NOWHERE)
    with pytest.raises(EndpointBusy, match=NOWHERE):
        await ask(client)
    await client.aclose()


@pytest.mark.parametrize(
    "said",
    [
        CONTEXT_FULL,
        {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
        {"error": {"message": "prompt is too long: 300 tokens > 200 maximum"}},
    ],
)
async def test_a_full_context_is_named(
    endpoint: Endpoint, client: OpenAIClient, said: object
) -> None:
    endpoint.script.append((400, {}, said))
    with pytest.raises(ContextFull):
        await ask(client)


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (401, f"Incorrect API key provided: {KEY}", "MAINSPRING_POLICY_API_KEY"),
        (404, "The model `m1` does not exist", "policy.model"),
        (402, "Insufficient credits", "credits"),
        (403, "<html>403 Forbidden</html>", "may this key"),
        (400, "n must be 1", "policy.temperature"),
        (429, {"error": {"code": "insufficient_quota"}}, "quota"),
    ],
)
async def test_refused_for_good_says_where_and_what_to_do(
    endpoint: Endpoint, client: OpenAIClient, status: int, said: object, remedy: str
) -> None:
    endpoint.script.append((status, {}, said))
    with pytest.raises(PolicyRefused) as caught:
        await ask(client)
    assert endpoint.url in caught.value.message
    assert remedy in caught.value.remedy
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "one two"),
        ([{"type": "thinking", "thinking": "?"}, {"type": "text", "text": "two"}], "two"),
        ([{"text": "no type"}], "no type"),
        ([], ""),
        ("lone \ud800 surrogate", "lone \ud800 surrogate"),
    ],
)
async def test_content_in_parts_is_their_text(
    endpoint: Endpoint, client: OpenAIClient, content: object, text: str
) -> None:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    endpoint.script.append((200, {}, {"choices": [choice]}))
    assert (await ask(client)).text == text


def saying(content: object, **fields: object) -> dict[str, object]:
    return {"choices": [{"message": {"role": "assistant", "content": content}}], **fields}


@pytest.mark.parametrize(
    "said",
    [
        "<html>a login page</html>",
        '{"choices": [{"message": {"role": "assistant", "cont',
        "",
        "null",
        "[" * 100_000,
        {"choices": []},
        {"choices": None},
        {"choices": [{"message": None}]},
        {"choices": ["text"]},
        saying({"text": "an object"}),
        saying(7),
        saying(["text"]),
        saying([{"type": "text", "text": 7}]),
    ],
)
async def test_a_malformed_reply_is_typed_and_not_asked_for_elsewhere(
    endpoint: Endpoint, said: object
) -> None:
    """It may have been paid for: who asks again does so with a bound."""
    with chat_endpoint() as other:
        client = client_of(endpoint.url, other.url)
        endpoint.script.append((200, {}, said))
        with pytest.raises(MalformedReply) as caught:
            await ask(client, sticky=first_at(endpoint.url, other.url))
        await client.aclose()
        assert (len(endpoint.asked), len(other.asked)) == (1, 0)
    assert endpoint.url in caught.value.message and "base URL" in caught.value.remedy
    assert len(caught.value.message) < 800


async def test_figures_of_another_shape_are_no_figures(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    """The reply beside them was paid for."""
    for usage in ("many", {"prompt_tokens": "7"}, {"prompt_tokens": -1}, {"prompt_tokens": 2**40}):
        endpoint.script.append((200, {}, saying("ok", usage=usage)))
        reply = await ask(client)
        assert (reply.text, reply.num_prompt_tokens) == ("ok", None)
    choice = {"message": {"content": "ok"}, "finish_reason": {"type": "stop"}}
    endpoint.script.append((200, {}, {"choices": [choice]}))
    assert (await ask(client)).finish_reason == "stop"


async def test_what_took_the_request_and_gave_no_reply_is_failing(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    endpoint.script.append((500, {}, "oops"))
    with pytest.raises(EndpointFailing, match="HTTP 500 oops"):
        await ask(client)
    endpoint.script.append((200, {"Content-Length": "5000"}, saying("cut")))
    with pytest.raises(EndpointFailing, match="RemoteProtocolError"):
        await ask(client)
    endpoint.script.append((200, {"Content-Encoding": "gzip"}, saying("no gzip")))
    with pytest.raises(MalformedReply):
        await ask(client)


async def test_every_endpoint_can_be_checked_before_anything_is_played(
    endpoint: Endpoint,
) -> None:
    policy = PolicyConfig(model="m1", engines=(endpoint.url, NOWHERE))
    client = OpenAIClient(policy)
    with pytest.raises(EngineError, match=f"no reply from {NOWHERE}"):
        await client.check(policy)
    assert (len(endpoint.asked), endpoint.keys) == (1, [None])
    await client.aclose()
