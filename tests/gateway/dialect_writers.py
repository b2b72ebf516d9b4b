"""Requests and echoes as a client of each dialect writes them: the inverse of the parsers.

A writer is told a whole history in the inner form. What a dialect has no place for (a system
message in the middle of a history, for Gemini) it writes as clients do.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from gateway.app import CHAT, GEMINI, MESSAGES, RESPONSES
from gateway.dialects.arguments import to_object
from gateway.dialects.protocol import DialectWire
from mainspring.programs.request import ChatMessage, ModelRequest, Role, ToolSpec

Body = dict[str, Any]


class Writer(Protocol):
    wire: DialectWire

    def body(self, request: ModelRequest) -> Body: ...

    def echoing(self, answer: Body) -> Body:
        """A request whose history is one user's message, the answer, and another message."""
        ...


class ChatWriter:
    wire: DialectWire = CHAT

    def body(self, request: ModelRequest) -> Body:
        tools = [{"type": "function", "function": _declared(tool)} for tool in request.tools]
        return _bounded(
            {"model": "any", "messages": [*map(self._message, request.messages)], "tools": tools},
            request,
            "max_completion_tokens",
        )

    def echoing(self, answer: Body) -> Body:
        user = {"role": "user", "content": "?"}
        return {"messages": [user, answer["choices"][0]["message"], user]}

    def _message(self, message: ChatMessage) -> Body:
        match message.role:
            case Role.TOOL:
                return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
            case Role.ASSISTANT if message.tool_calls:
                calls = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in message.tool_calls
                ]
                content = message.text or None
                return {"role": "assistant", "content": content, "tool_calls": calls}
            case role:
                return {"role": role.value, "content": message.text}


class ResponsesWriter:
    wire: DialectWire = RESPONSES

    def body(self, request: ModelRequest) -> Body:
        items = [item for message in request.messages for item in self._items(message)]
        tools = [{"type": "function", **_declared(tool)} for tool in request.tools]
        return _bounded(
            {"model": "any", "input": items, "tools": tools}, request, "max_output_tokens"
        )

    def echoing(self, answer: Body) -> Body:
        user = {"role": "user", "content": "?"}
        return {"input": [user, *answer["output"], user]}

    def _items(self, message: ChatMessage) -> list[Body]:
        if message.role is Role.TOOL:
            result = {"call_id": message.call_id, "output": message.text}
            return [{"type": "function_call_output", **result}]
        kind = "output_text" if message.role is Role.ASSISTANT else "input_text"
        said = {
            "type": "message",
            "role": message.role.value,
            "content": [{"type": kind, "text": message.text}],
        }
        calls = [
            {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in message.tool_calls
        ]
        return calls if calls and not message.text else [said, *calls]


class MessagesWriter:
    wire: DialectWire = MESSAGES

    def body(self, request: ModelRequest) -> Body:
        first, *rest = request.messages
        assert first.role is Role.SYSTEM
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.parameters,
            }
            for tool in request.tools
        ]
        return {
            "model": "any",
            "system": [{"type": "text", "text": first.text}],
            "messages": [self._message(message, _ids(rest)) for message in rest],
            "tools": tools,
            "max_tokens": request.max_tokens or 4096,
        }

    def echoing(self, answer: Body) -> Body:
        user = {"role": "user", "content": "?"}
        return {"messages": [user, {"role": "assistant", "content": answer["content"]}, user]}

    def _message(self, message: ChatMessage, ids: Mapping[str, str]) -> Body:
        said = [{"type": "text", "text": message.text}]
        match message.role:
            case Role.TOOL:
                result = {"tool_use_id": ids[message.call_id], "content": said}
                return {"role": "user", "content": [{"type": "tool_result", **result}]}
            case Role.ASSISTANT:
                calls = []
                for call in message.tool_calls:
                    call_id, value = to_object(call.id, call.arguments)
                    named = {"id": call_id, "name": call.name, "input": value}
                    calls.append({"type": "tool_use", **named})
                return {"role": "assistant", "content": [*(said if message.text else []), *calls]}
            case role:
                return {"role": role.value, "content": said}


class GeminiWriter:
    wire: DialectWire = GEMINI

    def body(self, request: ModelRequest) -> Body:
        first, *rest = request.messages
        assert first.role is Role.SYSTEM
        functions = [
            {
                "name": tool.name,
                "description": tool.description,
                "parametersJsonSchema": tool.parameters,
            }
            for tool in request.tools
        ]
        return {
            "systemInstruction": {"parts": [{"text": first.text}]},
            "contents": [self._content(message, _ids(rest)) for message in rest],
            "tools": [{"functionDeclarations": functions}],
            "generationConfig": _bounded({}, request, "maxOutputTokens"),
        }

    def echoing(self, answer: Body) -> Body:
        user = {"role": "user", "parts": [{"text": "?"}]}
        return {"contents": [user, answer["candidates"][0]["content"], user]}

    def _content(self, message: ChatMessage, ids: Mapping[str, str]) -> Body:
        said = [{"text": message.text}]
        match message.role:
            case Role.TOOL:
                told = {
                    "id": ids[message.call_id],
                    "name": "any",
                    "response": {"output": message.text},
                }
                return {"role": "user", "parts": [{"functionResponse": told}]}
            case Role.ASSISTANT:
                calls = []
                for call in message.tool_calls:
                    call_id, value = to_object(call.id, call.arguments)
                    named = {"id": call_id, "name": call.name, "args": value}
                    calls.append({"functionCall": named})
                return {"role": "model", "parts": [*(said if message.text else []), *calls]}
            case _:
                return {"role": "user", "parts": said}


WRITERS: dict[str, Writer] = {
    "chat": ChatWriter(),
    "responses": ResponsesWriter(),
    "messages": MessagesWriter(),
    "gemini": GeminiWriter(),
}


def _ids(messages: Iterable[ChatMessage]) -> dict[str, str]:
    """Of calls, as a dialect whose arguments are objects writes them."""
    calls = [call for message in messages for call in message.tool_calls]
    return {call.id: to_object(call.id, call.arguments)[0] for call in calls}


def _declared(tool: ToolSpec) -> Body:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _bounded(body: Body, request: ModelRequest, name: str) -> Body:
    return body if request.max_tokens is None else body | {name: request.max_tokens}


def as_sent(body: Body) -> bytes:
    return json.dumps(body).encode()
