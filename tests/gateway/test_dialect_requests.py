"""What a request becomes: fields without effect are noted, messages keep their order."""

from typing import Any

import httpx
import pytest
from dialect_bodies import (
    CHAT,
    IMAGES,
    MESSAGES,
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
from scripted_answers import Script

from gateway.dialects.conversation import NOT_SHOWN
from gateway.dialects.json_value import MAX_DEPTH
from mainspring.programs.request import ModelRequest, Role

IGNORED = {
    "chat": (
        *chat(
            n=1,
            temperature=0.5,
            top_p=0.9,
            stop=["x"],
            tool_choice="required",
            response_format={"type": "json_schema", "json_schema": {}},
            tools=[{"type": "web_search"}, function()],
            some_new_field=1,
            stream=False,
            user="me",
        ),
        {"temperature", "top_p", "stop", "tool_choice", "response_format", "tools[web_search]"},
    ),
    "chat, defaults": (
        *chat(
            tool_choice="auto", response_format={"type": "text"}, top_p=1, stop=None, logprobs=False
        ),
        set(),
    ),
    "responses": (
        *responses(
            temperature=1,
            tool_choice={"type": "function", "name": "run"},
            text={"format": {"type": "json_schema"}},
            tools=[{"type": "web_search"}, {"type": "namespace", "name": "n"}, RUN],
            client_metadata={},
            prompt_cache_key="x",
            include=["reasoning.encrypted_content"],
            store=False,
        ),
        {"temperature", "tool_choice", "text", "tools[web_search]", "tools[namespace]"},
    ),
    "messages": (
        *messages(
            temperature=1,
            stop_sequences=["x"],
            thinking={"type": "enabled"},
            output_config={"format": {"type": "json_schema"}},
            tool_choice={"type": "any"},
            tools=[{"type": "web_search_20250305", "name": "web_search"}, TOOL],
            metadata={"user_id": "x"},
        ),
        {
            *("temperature", "stop_sequences", "thinking", "output_config", "tool_choice"),
            "tools[web_search_20250305]",
        },
    ),
    "gemini": (
        *gemini(
            generationConfig={
                "temperature": 1,
                "topP": 1,
                "responseSchema": {},
                "candidateCount": 1,
            },
            toolConfig={"functionCallingConfig": {"mode": "ANY"}},
            tools=[{"googleSearch": {}}, *declared({"name": "run"})],
            safetySettings=[],
        ),
        {"temperature", "topP", "responseSchema", "toolConfig", "tools[googleSearch]"},
    ),
}


@pytest.mark.parametrize("name", IGNORED)
async def test_fields_without_effect_are_noted(
    name: str, script: Script, client: httpx.AsyncClient
) -> None:
    path, body, ignored = IGNORED[name]
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert set(script.request.ignored) == ignored
    assert [tool.name for tool in script.request.tools] in ([], ["run"])


async def test_images_beside_text_and_in_results_become_words(
    script: Script, client: httpx.AsyncClient
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    use = {"type": "tool_use", "id": "c", "name": "run", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [IMAGES[MESSAGES]]}
    for path, body in (
        chat(
            messages=[
                USER | {"content": [{"type": "text", "text": "See:"}, IMAGES[CHAT]]},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": [IMAGES[CHAT]]},
            ]
        ),
        messages(
            messages=[
                USER | {"content": [{"type": "text", "text": "See:"}, IMAGES[MESSAGES]]},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
        ),
        responses(
            input=[
                USER | {"content": [{"type": "input_text", "text": "See:"}, IMAGES[RESPONSES]]},
                {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [IMAGES[RESPONSES]]},
            ]
        ),
    ):
        assert (await client.post(path, json=body)).status_code == 200
        texts = [message.text for message in script.request.messages]
        assert texts == [f"See:\n{NOT_SHOWN}", "", NOT_SHOWN]
        assert script.request.ignored == ("images",)


async def test_results_and_text_of_one_anthropic_message_are_several(
    script: Script, client: httpx.AsyncClient
) -> None:
    uses = [{"type": "tool_use", "id": id, "name": "run", "input": {"n": 1}} for id in "ab"]
    results = [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"} for id in "ba"]
    said = [{"type": "text", "text": "Note."}, {"type": "text", "text": "Go."}]
    path, body = messages(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=3fe1;"},
            {"type": "text", "text": "You are an agent."},
        ],
        messages=[
            USER,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "?"}, *uses]},
            {"role": "user", "content": [*results, *said]},
            {"role": "system", "content": "calc.py was modified"},
        ],
    )
    assert (await client.post(path, json=body)).status_code == 200
    request = script.request
    assert [(message.role, message.text, message.call_id) for message in request.messages] == [
        (Role.SYSTEM, "You are an agent.", ""),
        (Role.USER, "Fix it.", ""),
        (Role.ASSISTANT, "", ""),
        (Role.TOOL, "of b", "b"),
        (Role.TOOL, "of a", "a"),
        (Role.USER, "Note.\nGo.", ""),
        (Role.SYSTEM, "calc.py was modified", ""),
    ]
    assert not request.is_subagent


async def test_second_system_messages_stay_in_place(
    script: Script, client: httpx.AsyncClient
) -> None:
    said = [{"role": role, "content": role} for role in ("system", "user", "developer", "system")]
    for path, body in (chat(messages=said), responses(input=said, instructions="first")):
        assert (await client.post(path, json=body)).status_code == 200
        roles = [message.role for message in script.request.messages]
        assert roles[-4:] == [Role.SYSTEM, Role.USER, Role.SYSTEM, Role.SYSTEM]
        assert len(roles) == (4 if path == CHAT else 5)


async def test_marks_of_sub_agents(script: Script, client: httpx.AsyncClient) -> None:
    block = "x-anthropic-billing-header: cc_version=2; cc_is_subagent=true;\nYou are an agent."
    asks = [
        (messages(), {"x-claude-code-agent-id": "a1"}),
        (messages(system=block), {}),
        (chat(), {"x-parent-session-id": "s"}),
    ]
    for (path, body), headers in asks:
        assert (await client.post(path, json=body, headers=headers)).status_code == 200
        assert script.request.is_subagent
    assert script.asked[1][1].messages[0].text == "You are an agent."
    await client.post(chat()[0], json=chat(messages=[{"role": "user", "content": block}])[1])
    assert not script.request.is_subagent


async def test_any_model_is_taken_and_halves_of_characters_are_replaced(
    script: Script, client: httpx.AsyncClient
) -> None:
    said = rb'[{"role": "user", "content": "a\ud83d b\ud83d\ude00"}]'
    body = b'{"model": "no-such", "messages": ' + said + b"}"
    answer = await client.post(CHAT, content=body)
    assert answer.json()["model"] == "no-such"
    assert script.request.messages[0].text == "a\ufffd b\U0001f600"


async def test_a_schema_of_the_deepest_kind_can_be_stored(
    script: Script, client: httpx.AsyncClient
) -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 6):
        schema = {"properties": {"a": 10**40}} if not schema else {"items": schema}
    path, body = chat(tools=[function(parameters=schema)])
    assert (await client.post(path, json=body)).status_code == 200
    request = script.request
    assert ModelRequest.model_validate_json(request.model_dump_json()) == request
