"""What an endpoint does in the place of a reply is no turn, and is waited for while it may pass."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr

from infra.policy.replies.endpoint_errors import (
    ContentFiltered,
    EndpointBusy,
    EndpointFailing,
    EndpointRefusing,
    PolicyRefused,
    PromptNotTaken,
    ReplyCut,
    StrayRefusal,
)
from infra.policy.replies.openai import OpenAIClient
from mainspring.config.policy import PolicyConfig
from mainspring.status import FaultKind
from mainspring.status.fates import OUTAGE_S, rule_of
from tests.chat_endpoint import Endpoint, chat_endpoint

KEY = "sk-very-secret"


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


async def ask(client: OpenAIClient, num_taken: int = 0):
    return await client.complete(
        [{"role": "user", "content": "one two"}],
        max_tokens=50,
        temperature=0.5,
        sticky="r",
        num_taken=num_taken,
    )


SAID = {"role": "assistant", "content": "THOUGHT: I"}


@pytest.mark.parametrize(
    "choice",
    [
        {"message": SAID, "finish_reason": "abort"},
        {"message": {"content": ""}, "finish_reason": "abort"},
        {"message": {"content": None}, "finish_reason": "abort"},
        {"message": None, "finish_reason": "error"},
        {"message": SAID, "finish_reason": "error"},
        {
            "message": SAID,
            "finish_reason": "error",
            "error": {"message": "upstream idle timeout", "code": 504},
        },
        {"message": SAID, "finish_reason": "stop", "error": {"message": "idle", "code": 502}},
        *(
            {"message": SAID, "finish_reason": reason}
            for reason in (
                "ABORTED",
                "cancelled",
                "canceled",
                "USER_CANCEL",
                "ERROR",
                "timeout",
                "network_error",
                "insufficient_system_resource",
                "server_error",
                "incomplete",
                "FinishReason.ABORT",
            )
        ),
        {"message": {"content": ""}, "finish_reason": None},
        {"message": {"content": None}},
    ],
)
async def test_a_reply_that_the_endpoint_cut_off_is_asked_for_again(
    endpoint: Endpoint, client: OpenAIClient, choice: object
) -> None:
    endpoint.script.append((200, {}, {"choices": [choice]}))
    with pytest.raises(EndpointBusy) as caught:
        await ask(client)
    assert caught.value.fault is FaultKind.ENGINE_BUSY  # as a 502
    with chat_endpoint() as other:
        both = client_of(endpoint.url, other.url)
        endpoint.script.append((200, {}, {"choices": [choice]}))
        assert (await ask(both)).text == "ok"
        await both.aclose()


async def test_a_half_reply_without_a_finish_reason_where_others_had_one(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    half = {"choices": [{"message": SAID, "finish_reason": None}]}
    endpoint.script.append((200, {}, half))
    assert (await ask(client)).finish_reason == "stop"  # perhaps it never tells
    await ask(client)
    endpoint.script.append((200, {}, half))
    with pytest.raises(ReplyCut, match="no finish reason"):
        await ask(client)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": ""}, "stop"),
        ({"content": None}, "stop"),
        ({"content": "half"}, "length"),
        ({"content": None, "reasoning_content": "hm"}, "length"),
        ({"content": "ok"}, "eos_token"),
        ({"content": "ok"}, "COMPLETE"),
        ({"content": "ok"}, "end_turn"),
        ({"content": "ok"}, "ERROR_LIMIT"),
        ({"content": "ok"}, "max_tokens"),
        ({"content": ""}, "malformed_function_call"),
    ],
)
async def test_what_the_model_ended_itself_is_a_reply(
    endpoint: Endpoint, client: OpenAIClient, message: object, reason: str
) -> None:
    choice = {"message": message, "finish_reason": reason}
    endpoint.script.append((200, {}, {"choices": [choice]}))
    assert (await ask(client)).finish_reason == reason


@pytest.mark.parametrize(
    "reason",
    ["content_filter", "sensitive", "SAFETY", "RECITATION", "refusal", "ERROR_TOXIC", "BLOCKLIST"],
)
@pytest.mark.parametrize("content", [None, "", "half of it"])
async def test_a_reply_that_a_filter_held_back_is_a_refusal_and_no_turn(
    endpoint: Endpoint, client: OpenAIClient, reason: str, content: str | None
) -> None:
    choice = {"message": {"content": content}, "finish_reason": reason}
    endpoint.script.append((200, {}, {"choices": [choice]}))
    with pytest.raises(ContentFiltered, match=reason) as caught:
        await ask(client, 2)
    assert caught.value.fault is FaultKind.POLICY_REFUSED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "oops"}, EndpointBusy),
        ("oops", EndpointBusy),
        ({"message": "slow down", "code": 429}, EndpointBusy),
        ({"message": "slow down", "code": "429"}, EndpointBusy),
        ({"message": "oops", "code": 500}, EndpointFailing),
        ({"message": "no credits", "code": 402}, EndpointRefusing),
        ({"message": "maximum context length is 8192 tokens", "code": 400}, PromptNotTaken),
        ({"message": "maximum context length is 8192 tokens"}, PromptNotTaken),
        ({"message": "flagged", "code": 400}, ContentFiltered),
    ],
)
async def test_an_error_with_http_200_counts_as_its_own_status(
    endpoint: Endpoint, client: OpenAIClient, error: object, kind: type[Exception]
) -> None:
    for body in (
        {"error": error},
        {"error": error, "choices": []},
        {"choices": [{"error": error}]},
    ):
        endpoint.script.append((200, {}, body))
        with pytest.raises(kind):
            await ask(client, 2)


@pytest.mark.parametrize("status", [301, 302, 307, 308, 401, 402, 403, 404])
async def test_what_refuses_all_requests_alike_is_waited_for(
    endpoint: Endpoint, client: OpenAIClient, status: int
) -> None:
    endpoint.script.append((status, {"Location": "https://models.example/v1/chat/completions"}, ""))
    with pytest.raises(EndpointRefusing) as caught:
        await ask(client, 2)
    assert not rule_of(caught.value.fault).is_final(20, 600.0)
    assert rule_of(caught.value.fault).is_final(20, OUTAGE_S)
    assert caught.value.retry_after_s
    if status < 400:
        assert "write https://models.example/v1 in its place" in caught.value.remedy


@pytest.mark.parametrize("status", [400, 422, 424, 451, 499])
async def test_a_stray_refusal_after_replies_is_asked_again_with_a_bound(
    endpoint: Endpoint, client: OpenAIClient, status: int
) -> None:
    endpoint.script.append((status, {}, {"error": {"message": "Provider returned error"}}))
    with pytest.raises(StrayRefusal) as caught:
        await ask(client, 2)
    rule = rule_of(caught.value.fault)
    assert not rule.is_final(1, 0.0) and rule.is_final(10, 900.0)


async def test_a_request_that_never_fits_an_accounts_limit_is_not_waited_for(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    said = "Request too large for m1 on tokens per min (TPM): Limit 30000, Requested 40000."
    endpoint.script.append((429, {}, {"error": {"message": said}}))
    with pytest.raises(PromptNotTaken, match="Requested 40000"):
        await ask(client, 2)


async def test_one_endpoint_that_refuses_leaves_the_other(endpoint: Endpoint) -> None:
    with chat_endpoint() as other:
        client = client_of(endpoint.url, other.url)
        endpoint.script.extend([(402, {}, "Insufficient credits")] * 2)
        assert (await ask(client, 2)).text == "ok"
        other.script.append((402, {}, "Insufficient credits"))
        endpoint.script.clear()
        endpoint.script.append((402, {}, "Insufficient credits"))
        with pytest.raises(EndpointRefusing):
            await ask(client, 2)
        await client.aclose()


NO_TEMPERATURE = [
    {"message": "Unsupported parameter: 'temperature' is not supported with this model."},
    {"message": "Unsupported value: 'temperature' does not support 0.5 with this model. Only the "
     "default (1) value is supported.", "param": "temperature"},
    {"message": "invalid temperature: only 1 is allowed for this model"},
    {"message": "`temperature` is deprecated for this model."},
    {"message": "Invalid value.", "param": "temperature"},
]  # fmt: skip


@pytest.mark.parametrize("said", NO_TEMPERATURE)
async def test_a_temperature_that_the_model_refuses_is_left_out_and_told(
    endpoint: Endpoint, client: OpenAIClient, said: object
) -> None:
    policy = PolicyConfig(model="m1", engines=(endpoint.url,), temperature=0.5)
    endpoint.script.append((400, {}, {"error": said}))
    [told] = await client.check(policy)
    assert "refuses temperature" in told and "0.5" in told and '"default"' in told
    await ask(client)
    assert ["temperature" in body for body in endpoint.asked] == [True, False, False]


async def test_a_model_that_refuses_both_fields(endpoint: Endpoint, client: OpenAIClient) -> None:
    for said in ("Use 'max_completion_tokens' instead.", "'temperature' is not supported"):
        endpoint.script.append((400, {}, {"error": {"message": said}}))
    await ask(client)
    await ask(client)
    assert len(endpoint.asked) == 4
    assert endpoint.asked[2].keys() == {"model", "messages", "max_completion_tokens"}
    assert endpoint.asked[3].keys() == {"model", "messages", "max_completion_tokens"}


async def test_a_temperature_that_was_taken_is_never_left_out_later(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    """A run would be half at one temperature, half at another."""
    await ask(client)
    endpoint.script.append((400, {}, {"error": NO_TEMPERATURE[0]}))
    with pytest.raises(StrayRefusal):
        await ask(client, 2)
    await ask(client)
    assert all("temperature" in body for body in endpoint.asked)


async def test_a_temperature_that_only_the_prompt_names_stays(
    endpoint: Endpoint, client: OpenAIClient
) -> None:
    said = {"error": {"message": "no temperature"}}
    endpoint.script.extend([(400, {}, said), (400, {}, "still not")])
    with pytest.raises(PolicyRefused):
        await ask(client)
    await ask(client)
    assert ["temperature" in body for body in endpoint.asked] == [True, False, True]


async def test_no_temperature_is_sent_where_the_file_leaves_it_to_the_endpoint(
    endpoint: Endpoint,
) -> None:
    policy = PolicyConfig.model_validate(
        {"api": "openai", "model": "m1", "engines": (endpoint.url,), "temperature": "default"}
    )
    client = OpenAIClient(policy)
    assert await client.check(policy) == ()
    await ask(client)
    await client.aclose()
    assert not any("temperature" in body for body in endpoint.asked)
    again = PolicyConfig.model_validate_json(policy.model_dump_json())
    assert again == policy and again.rollout_temperature == 1.0
    with pytest.raises(ValueError, match='needs api = "openai"'):
        PolicyConfig.model_validate({"temperature": "default"})
