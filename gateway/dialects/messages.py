"""Anthropic's messages.

A user's message with results of tools becomes a tool's message for each result, then a user's
message of its text. Thinking in the history is dropped: the tokens that were served stand. Pure;
the tests hold every answer against the types of the package `anthropic`.
"""

from typing import Any

from gateway.dialects import sse
from gateway.dialects.arguments import from_object, to_object
from gateway.dialects.conversation import Conversation, Text, Toolbox, as_json, without_billing
from gateway.dialects.json_value import JsonValue
from gateway.dialects.protocol import STATUSES, Envelope, ParsedRequest, Problem, ProblemKind
from mainspring.programs.profile import MODEL_NAME
from mainspring.programs.reply import Answer, Finish
from mainspring.programs.request import Dialect, ModelRequest, ToolCall

SIGNATURE = "bWFpbnNwcmluZw=="
"""Signature of thinking blocks: clients send it back, the gateway does not look at it."""
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "container": (),
    "mcp_servers": ([],),
    "output_config": ({},),
    "output_format": (),
    "stop_sequences": ([],),
    "temperature": (),
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "auto"},),
    "top_k": (),
    "top_p": (),
}
_BEGAN = "1970-01-01T00:00:00Z"
_SUBAGENT = "cc_is_subagent=true"
_FINISHES = {
    Finish.STOP: "end_turn",
    Finish.TOOL_CALLS: "tool_use",
    Finish.LENGTH: "max_tokens",
}
_ERRORS = {
    ProblemKind.BODY_TOO_LARGE: "request_too_large",
    ProblemKind.UNKNOWN_KEY: "authentication_error",
    ProblemKind.UNKNOWN_ROUTE: "not_found_error",
    ProblemKind.SESSION_OVER: "permission_error",
    ProblemKind.UNAVAILABLE: "overloaded_error",
    ProblemKind.INTERNAL: "api_error",
}
_HIDDEN = ("image", "document", "container_upload")
_THOUGHTS = ("thinking", "redacted_thinking")


class Messages:
    waiting = sse.COMMENT

    def parse(self, body: JsonValue, envelope: Envelope) -> ParsedRequest:
        conversation = Conversation()
        conversation.ignore_set(body, _WITHOUT_EFFECT)
        system = body.member("system")
        opening = str(_text(system)) if system.is_there else ""
        is_subagent = _SUBAGENT in opening.partition("\n")[0]
        if prompt := without_billing(opening):
            conversation.system(prompt)
        for message in body.member("messages").items():
            _add(conversation, message)
        tools = Toolbox()
        for tool in body.member("tools").items_if_there():
            if (kind := tool.member("type").text_or("custom")) == "custom":
                tools.add(tool, tool.member("input_schema"), needs_schema=True)
            else:
                conversation.ignore(f"tools[{kind}]")
        request = ModelRequest(
            dialect=Dialect.MESSAGES,
            model=body.member("model").text_or(""),
            messages=conversation.messages(body.member("messages")),
            tools=tools.specs(),
            max_tokens=body.member("max_tokens").count(),
            is_subagent=is_subagent or bool(envelope.headers.get("x-claude-code-agent-id")),
            ignored=conversation.ignored,
        )
        return ParsedRequest(request, streams=body.member("stream").truth())

    def body(self, parsed: ParsedRequest, answer: Answer) -> dict[str, Any]:
        return _message(parsed, answer) | {
            "content": _content(answer),
            "stop_reason": _FINISHES[answer.reply.finish],
            "usage": _usage(answer.num_prompt_tokens, answer.num_completion_tokens),
        }

    def events(self, parsed: ParsedRequest, answer: Answer) -> list[str]:
        opening = _message(parsed, answer) | {"usage": _usage(answer.num_prompt_tokens, 1)}
        events = [_event("message_start", message=opening)]
        for index, block in enumerate(_content(answer)):
            events += _block_events(index, block)
        usage = {"output_tokens": answer.num_completion_tokens}
        delta = {"stop_reason": _FINISHES[answer.reply.finish], "stop_sequence": None}
        events.append(_event("message_delta", delta=delta, usage=usage))
        return [*events, _event("message_stop")]

    def error(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        kind = _ERRORS.get(problem.kind, "invalid_request_error")
        detail = {"type": kind, "message": problem.message}
        return STATUSES[problem.kind], {"type": "error", "error": detail, "request_id": None}

    def error_event(self, problem: Problem) -> str:
        return sse.event(self.error(problem)[1], "error")

    def tells_in_stream(self, problem: Problem) -> bool:
        return False


def token_count(num_tokens: int) -> dict[str, int]:
    """The answer of the route that counts tokens."""
    return {"input_tokens": num_tokens}


def model(name: str, max_context: int) -> dict[str, Any]:
    """Answer of the route of a model: there is one, under any name."""
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": _BEGAN,
        "max_input_tokens": max_context,
    }


def models(max_context: int) -> dict[str, Any]:
    """The answer of the route that lists models."""
    return {
        "data": [model(MODEL_NAME, max_context)],
        "has_more": False,
        "first_id": MODEL_NAME,
        "last_id": MODEL_NAME,
    }


def _add(conversation: Conversation, message: JsonValue) -> None:
    role, content = message.member("role").text(), message.member("content")
    if role == "user":
        _add_user(conversation, content)
    elif role == "assistant":
        _add_assistant(conversation, content)
    elif role == "system":
        conversation.system(str(_text(content)))
    else:
        message.member("role").refuse("user, assistant or system")


def _add_user(conversation: Conversation, content: JsonValue) -> None:
    if content.is_text:
        conversation.user(_text(content), content)
        return
    if not content.is_list:
        content.refuse("text or a list of blocks")
    user_text, num_results = Text(), 0
    for block in content.items():
        if block.member("type").text() == "tool_result":
            result = block.member("content")
            text = _text(result) if result.is_there else Text()
            conversation.result(block.member("tool_use_id").text(), text, block)
            num_results += 1
        else:
            _add_block(user_text, block)
    if not user_text.is_empty or not num_results:
        conversation.user(user_text, content)


def _add_assistant(conversation: Conversation, content: JsonValue) -> None:
    if content.is_text:
        conversation.assistant(content.text())
        return
    if not content.is_list:
        content.refuse("text or a list of blocks")
    text, calls = "", []
    for block in content.items():
        kind = block.member("type").text()
        if kind == "text":
            text += block.member("text").text()
        elif kind == "tool_use":
            call_id = block.member("id").text()
            arguments = from_object(call_id, block.member("input"))
            name = block.member("name").text()
            calls.append(ToolCall(name=name, arguments=arguments, id=call_id))
        elif kind not in _THOUGHTS:
            conversation.ignore(f"messages[{kind}]")
    # Some clients send each block of a reply as a message of its own.
    conversation.assistant(text, calls, continues=not text or conversation.ends_bare)


def _text(content: JsonValue) -> Text:
    text = Text()
    if content.is_text:
        text.add(content.text())
        return text
    if not content.is_list:
        content.refuse("text or a list of blocks")
    for block in content.items():
        _add_block(text, block)
    return text


def _add_block(text: Text, block: JsonValue) -> None:
    kind = block.member("type").text()
    if kind == "text":
        text.add(block.member("text").text())
    elif kind in _HIDDEN:
        text.hide()
    elif kind == "search_result":
        text.add(as_json(block.member("content").value))
    else:
        block.member("type").refuse("text, tool_result or image")


def _message(parsed: ParsedRequest, answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.number}",
        "type": "message",
        "role": "assistant",
        "model": parsed.request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _content(answer: Answer) -> list[dict[str, Any]]:
    reply, blocks = answer.reply, []
    if reply.reasoning:
        thinking = {"thinking": reply.reasoning, "signature": SIGNATURE}
        blocks.append({"type": "thinking"} | thinking)
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for index, call in enumerate(reply.tool_calls):
        call_id, value = to_object(answer.call_id(index), call.arguments)
        blocks.append({"type": "tool_use", "id": call_id, "name": call.name, "input": value})
    return blocks


def _block_events(index: int, block: dict[str, Any]) -> list[str]:
    if block["type"] == "thinking":
        empty: dict[str, Any] = {"thinking": "", "signature": ""}
        pieces = [
            {"type": "thinking_delta", "thinking": part} for part in sse.deltas(block["thinking"])
        ]
        pieces.append({"type": "signature_delta", "signature": block["signature"]})
    elif block["type"] == "text":
        empty = {"text": ""}
        pieces = [{"type": "text_delta", "text": part} for part in sse.deltas(block["text"])]
    else:
        empty = {"input": {}}
        text = as_json(block["input"])
        pieces = [{"type": "input_json_delta", "partial_json": part} for part in sse.deltas(text)]
    return [
        _event("content_block_start", index=index, content_block=block | empty),
        *(_event("content_block_delta", index=index, delta=piece) for piece in pieces),
        _event("content_block_stop", index=index),
    ]


def _event(kind: str, **fields: Any) -> str:
    return sse.event({"type": kind} | fields, kind)


def _usage(num_input: int, num_output: int) -> dict[str, int]:
    return {
        "input_tokens": num_input,
        "output_tokens": num_output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
