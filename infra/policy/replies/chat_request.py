"""A program's request as an endpoint of chat completions takes it. Pure.

Invariants: the same request gives the same messages in each life of its program, so that the
endpoint's cache of prompts holds: ids of tool calls are by place, as clients make theirs up (nine
letters and digits: some servers take no others). Arguments in the history are JSON objects, which
servers with chat templates read: others are wrapped, as clients of Anthropic's and Gemini's APIs
see them. Used by `text_policy`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from infra.policy.model.request_messages import as_object, described
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolCall, ToolSpec

_NO_FIELDS = {"type": "object", "properties": {}}


def messages_of(request: ModelRequest) -> list[dict[str, Any]]:
    return list(_messages(request.messages))


def tools_of(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [
        described(tool if tool.parameters else tool.model_copy(update={"parameters": _NO_FIELDS}))
        for tool in tools
    ]


def _messages(messages: Sequence[ChatMessage]) -> Iterator[dict[str, Any]]:
    ids: dict[str, str] = {}
    num_calls = 0
    for message in messages:
        if message.role is Role.TOOL:
            call_id = ids.get(message.call_id, message.call_id)
            yield {"role": "tool", "tool_call_id": call_id, "content": message.text}
        elif message.tool_calls:
            calls: list[dict[str, Any]] = []
            for call in message.tool_calls:
                ids[call.id] = f"call{num_calls:05d}"
                num_calls += 1
                calls.append(_call(call, ids[call.id]))
            yield {"role": "assistant", "content": message.text or None, "tool_calls": calls}
        else:
            yield {"role": message.role.value, "content": message.text}


def _call(call: ToolCall, call_id: str) -> dict[str, Any]:
    arguments = call.arguments
    if not arguments.strip():
        arguments = "{}"
    elif as_object(arguments) is None:
        arguments = json.dumps({"arguments": arguments}, ensure_ascii=False)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
