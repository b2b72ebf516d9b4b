"""Gemini's generateContent and streamGenerateContent.

Model and streaming stand in the path. A call without an id, which older clients send, is known by
its place: a result belongs to the first call of its name that has none yet. Pure.
"""

import json
from typing import Any

from gateway.dialects import sse
from gateway.dialects.arguments import from_object, to_object
from gateway.dialects.conversation import Conversation, Text, Toolbox, as_json
from gateway.dialects.json_value import BadRequest, JsonValue
from gateway.dialects.protocol import STATUSES, Envelope, ParsedRequest, Problem, ProblemKind
from mainspring.programs.profile import MODEL_NAME
from mainspring.programs.reply import Answer
from mainspring.programs.request import Dialect, ModelRequest, ToolCall

_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "cachedContent": (),
    "safetySettings": ([],),
    "toolConfig": ({}, {"functionCallingConfig": {"mode": "AUTO"}}),
}
_CONFIG_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "frequencyPenalty": (0,),
    "logprobs": (),
    "mediaResolution": (),
    "presencePenalty": (0,),
    "responseJsonSchema": (),
    "responseLogprobs": (False,),
    "responseMimeType": ("text/plain",),
    "responseModalities": (["TEXT"],),
    "responseSchema": (),
    "seed": (),
    "speechConfig": (),
    "stopSequences": ([],),
    "temperature": (),
    "thinkingConfig": (),
    "topK": (),
    "topP": (),
}
_STATUS_NAMES = {
    ProblemKind.UNKNOWN_KEY: "UNAUTHENTICATED",
    ProblemKind.UNKNOWN_ROUTE: "NOT_FOUND",
    ProblemKind.WRONG_METHOD: "UNIMPLEMENTED",
    ProblemKind.SESSION_OVER: "PERMISSION_DENIED",
    ProblemKind.UNAVAILABLE: "UNAVAILABLE",
    ProblemKind.INTERNAL: "INTERNAL",
}
_TYPES = {"OBJECT", "ARRAY", "STRING", "NUMBER", "INTEGER", "BOOLEAN", "NULL"}
_DECLARATIONS = ("functionDeclarations", "function_declarations")


class Gemini:
    # The SDK for JavaScript takes a comment for half an event, and ends the run.
    waiting = "\n"

    def parse(self, body: JsonValue, envelope: Envelope) -> ParsedRequest:
        conversation = _Contents()
        config = body.first_member("generationConfig", "generation_config")
        if config.is_there:
            if (config.member("candidateCount").count() or 1) > 1:
                raise BadRequest(
                    "generationConfig.candidateCount must be 1: one reply is sampled for a request",
                    field="generationConfig.candidateCount",
                )
            conversation.ignore_set(config, _CONFIG_WITHOUT_EFFECT)
        conversation.ignore_set(body, _WITHOUT_EFFECT)
        system = body.first_member("systemInstruction", "system_instruction")
        if system.is_there:
            conversation.system(str(_text(system)))
        for content in body.member("contents").items():
            conversation.add(content)
        tools = Toolbox()
        for tool in body.member("tools").items_if_there():
            for name in tool.mapping():
                if name not in _DECLARATIONS:
                    conversation.ignore(f"tools[{name}]")
            for function in tool.first_member(*_DECLARATIONS).items_if_there():
                schema = function.first_member("parametersJsonSchema", "parameters")
                tools.add(function, JsonValue(_json_schema(schema.value), schema.path))
        request = ModelRequest(
            dialect=Dialect.GEMINI,
            model=envelope.model,
            messages=conversation.messages(body.member("contents")),
            tools=tools.specs(),
            max_tokens=config.member("maxOutputTokens").count() if config.is_there else None,
            ignored=conversation.ignored,
        )
        return ParsedRequest(request, streams=envelope.streams)

    def body(self, parsed: ParsedRequest, answer: Answer) -> dict[str, Any]:
        return _response(parsed, answer, _parts(answer), is_last=True)

    def events(self, parsed: ParsedRequest, answer: Answer) -> list[str]:
        parts = [piece for part in _parts(answer) for piece in _pieces(part)]
        last = len(parts) - 1
        return [
            sse.event(_response(parsed, answer, [part], is_last=index == last))
            for index, part in enumerate(parts)
        ]

    def error(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        status = STATUSES[problem.kind]
        name = _STATUS_NAMES.get(problem.kind, "INVALID_ARGUMENT")
        return status, {"error": {"code": status, "message": problem.message, "status": name}}

    def error_event(self, problem: Problem) -> str:
        # Not an event: in the SDK for JavaScript only bare JSON is an error.
        return json.dumps(self.error(problem)[1]) + "\n\n"

    def tells_in_stream(self, problem: Problem) -> bool:
        return False


def token_count(num_tokens: int) -> dict[str, int]:
    """The answer of the route that counts tokens."""
    return {"totalTokens": num_tokens}


def model(name: str, max_context: int) -> dict[str, Any]:
    """Answer of the route of a model: there is one, under any name."""
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": max_context,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def models(max_context: int) -> dict[str, Any]:
    """The answer of the route that lists models."""
    return {"models": [model(MODEL_NAME, max_context)]}


class _Contents(Conversation):
    """A conversation whose calls may have no ids."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0
        self._open: list[tuple[str, str]] = []
        """Name and id of calls without a result."""

    def add(self, content: JsonValue) -> None:
        role = content.member("role").text_or("user")
        if role == "model":
            self._add_model(content)
        elif role in ("user", "function"):
            self._add_user(content)
        else:
            content.member("role").refuse("user or model")

    def _add_user(self, content: JsonValue) -> None:
        user_text, num_results = Text(), 0
        for part in content.member("parts").items():
            result = part.first_member("functionResponse", "function_response")
            if result.is_there:
                self._add_result(result)
                num_results += 1
            else:
                _add_part(user_text, part)
        if not user_text.is_empty or not num_results:
            self.user(user_text, content)

    def _add_result(self, result: JsonValue) -> None:
        name, call_id = result.member("name").text(), result.member("id").text_or("")
        if not call_id:
            call_id = next(
                (open_id for open_name, open_id in self._open if open_name == name), name
            )
        self._open = [open_call for open_call in self._open if open_call[1] != call_id]
        response, text = result.member("response"), Text()
        if response.is_there:
            fields = response.mapping()
            only = next(iter(fields.values())) if len(fields) == 1 else None
            text.add(only if isinstance(only, str) else as_json(fields))
        for _ in result.member("parts").items_if_there():
            text.hide()
        self.result(call_id, text, result)

    def _add_model(self, content: JsonValue) -> None:
        text, calls = "", []
        for part in content.member("parts").items_if_there():
            call = part.first_member("functionCall", "function_call")
            if call.is_there:
                calls.append(self._call(call))
            elif part.member("text").is_there and not part.member("thought").truth():
                text += part.member("text").text()
        self.assistant(text, calls, continues=True)

    def _call(self, call: JsonValue) -> ToolCall:
        name = call.member("name").text()
        call_id = call.member("id").text_or("") or f"place_{self._num_calls}"
        self._num_calls += 1
        self._open.append((name, call_id))
        return ToolCall(name=name, arguments=from_object(call_id, call.member("args")), id=call_id)


def _text(content: JsonValue) -> Text:
    """Text of a system instruction: a content, or text."""
    text = Text()
    if content.is_text:
        text.add(content.text())
        return text
    for part in content.member("parts").items():
        _add_part(text, part)
    return text


def _add_part(text: Text, part: JsonValue) -> None:
    if part.member("text").is_there:
        text.add(part.member("text").text())
    elif part.first_member("inlineData", "inline_data", "fileData", "file_data").is_there:
        text.hide()
    else:
        part.refuse("a part with text, functionCall, functionResponse or inlineData")


def _json_schema(value: Any) -> Any:
    """Gemini's own schemas write types in upper case."""
    if isinstance(value, dict):
        return {
            key: item.lower()
            if key == "type" and isinstance(item, str) and item in _TYPES
            else _json_schema(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_json_schema(item) for item in value]
    return value


def _parts(answer: Answer) -> list[dict[str, Any]]:
    reply, parts = answer.reply, []
    if reply.reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if reply.text:
        parts.append({"text": reply.text})
    for index, call in enumerate(reply.tool_calls):
        call_id, value = to_object(answer.call_id(index), call.arguments)
        parts.append({"functionCall": {"id": call_id, "name": call.name, "args": value}})
    return parts if reply.text or reply.tool_calls else [*parts, {"text": ""}]


def _pieces(part: dict[str, Any]) -> list[dict[str, Any]]:
    if not part.get("text"):
        return [part]
    return [part | {"text": piece} for piece in sse.deltas(part["text"])]


def _response(
    parsed: ParsedRequest, answer: Answer, parts: list[dict[str, Any]], *, is_last: bool
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if is_last:
        candidate["finishReason"] = "MAX_TOKENS" if answer.reply.is_cut else "STOP"
    usage = {
        "promptTokenCount": answer.num_prompt_tokens,
        "candidatesTokenCount": answer.num_completion_tokens,
        "totalTokenCount": answer.num_prompt_tokens + answer.num_completion_tokens,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": parsed.request.model,
        "responseId": f"response-{answer.number}",
    }


def as_array(events: list[str]) -> str:
    """A stream without `alt=sse`: the same responses as one JSON list."""
    return json.dumps([json.loads(event.removeprefix("data: ")) for event in events])
