"""Requests to a chat model as texts that an agent is shown, and an action as the model's reply.

Invariants: what a request adds to the one before it, and to the reply that was given, is shown
once; an image is refused, never left out. Pure, and of the standard library alone. Used by the
worlds beside this file.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

TOOLS = (
    'These tools can be called by a reply that is a JSON object {"name": ..., "arguments": {...}} '
    "and nothing else; every other reply is text."
)
MODEL = "mainspring"

Message = Mapping[str, Any]


class NotShown(Exception):
    """A request holds what no text can show."""


def observation(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    before: Sequence[Message],
    tools_before: Sequence[Mapping[str, Any]],
) -> str:
    """Text of what is new: everything, where the request does not continue the one before it.
    Raises NotShown."""
    start = len(before) + 1
    is_continued = (
        before
        and len(messages) >= start
        and messages[start - 1].get("role") == "assistant"
        and [_identity(each) for each in messages[: start - 1]] == [_identity(m) for m in before]
    )
    new = messages[start:] if is_continued else messages
    has_replies = any(each.get("role") == "assistant" for each in new)
    texts = [_labelled(each) if has_replies else _text(each) for each in new]
    if tools and (not is_continued or tools != tools_before):
        texts.append("\n".join([TOOLS, *map(_tool_line, tools)]))
    return "\n\n".join(filter(None, texts))


def reply_message(action: str, tools: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    """The assistant's message that the action is; `number` counts the replies of its world."""
    call = _call(action) if tools else None
    if call is None:
        return {"role": "assistant", "content": action}
    name, arguments = call
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def completion(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The answer to a request for a chat completion."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def chunks(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same answer as events of a stream."""
    [choice] = whole["choices"]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    head = {name: whole[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    return [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [end]},
        {**head, "choices": [], "usage": whole["usage"]},
    ]


def _call(action: str) -> tuple[str, dict[str, Any]] | None:
    try:
        given = json.loads(action)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or set(given) != {"name", "arguments"}:
        return None
    name, arguments = given["name"], given["arguments"]
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        kind = part.get("type")
        if kind not in ("text", "input_text", "output_text"):
            raise NotShown(f"a message of the environment has a part of the type {kind!r}")
        parts.append(str(part.get("text", "")))
    return "".join(parts)


def _labelled(message: Message) -> str:
    calls = [
        f"calls {call['function']['name']} {call['function']['arguments']}"
        for call in message.get("tool_calls") or ()
    ]
    lines = [f"[{message.get('role')}]", _text(message), *calls]
    return "\n".join(filter(None, lines))


def _identity(message: Message) -> tuple[Any, ...]:
    calls = [call.get("function") for call in message.get("tool_calls") or ()]
    return message.get("role"), _text(message), json.dumps(calls, sort_keys=True)


def _tool_line(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    shown = {
        name: function[name] for name in ("name", "description", "parameters") if name in function
    }
    return json.dumps(shown)
