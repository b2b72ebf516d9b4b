"""OpenAI's responses: requests and whole answers; `responses_stream` writes the events.

Every answer is `completed`, also one that was cut by length: Codex ends its run at
`response.incomplete`, and a reply that was cut is one of which the agent should make the best.
Items of one reply are one assistant's message. Reasoning in the history is dropped: the tokens that
were served stand. Nothing is kept between requests, so clients send the whole history. Pure; the
tests hold every answer against the types of the package `openai`.
"""

from typing import Any

from gateway.dialects import openai, responses_stream, sse
from gateway.dialects.arguments import FREEFORM_SCHEMA, from_freeform, to_freeform
from gateway.dialects.conversation import Conversation, Text, Toolbox, as_json
from gateway.dialects.json_value import BadRequest, JsonValue
from gateway.dialects.openai import text_of
from gateway.dialects.protocol import Envelope, ParsedRequest, Problem, ProblemKind
from mainspring.programs.reply import Answer
from mainspring.programs.request import Dialect, ModelRequest, ToolCall

_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "max_tool_calls": (),
    "parallel_tool_calls": (True,),
    "reasoning": ({},),
    "temperature": (),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("auto",),
    "top_logprobs": (0,),
    "top_p": (1,),
    "truncation": ("disabled",),
}
_NOT_KEPT = "nothing is kept between requests: send the whole history as input"
_REFUSED = {
    "previous_response_id": _NOT_KEPT,
    "conversation": _NOT_KEPT,
    "prompt": "prompt templates are not served: send instructions and input",
}
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_HIDDEN = ("input_image", "input_file", "input_audio")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class Responses:
    waiting = sse.COMMENT

    def parse(self, body: JsonValue, envelope: Envelope) -> ParsedRequest:
        for name, reason in _REFUSED.items():
            if body.member(name).is_there:
                raise BadRequest(f"{name}: {reason}", field=name)
        if body.member("background").truth():
            raise BadRequest("background must be false: answers are not kept", field="background")
        conversation = Conversation()
        conversation.ignore_set(body, _WITHOUT_EFFECT)
        if instructions := body.member("instructions").text_or(""):
            conversation.system(instructions)
        history = body.member("input")
        if history.is_text:
            text = Text()
            text.add(history.text())
            conversation.user(text, history)
        else:
            for item in history.items():
                _add(conversation, item)
        tools, freeform = Toolbox(), set()
        for tool in body.member("tools").items_if_there():
            if (kind := tool.member("type").text()) == "function":
                tools.add(tool, tool.member("parameters"))
            elif kind == "custom":
                schema = JsonValue(FREEFORM_SCHEMA, tool.path)
                freeform.add(tools.add(tool, schema))
            else:
                conversation.ignore(f"tools[{kind}]")
        request = ModelRequest(
            dialect=Dialect.RESPONSES,
            model=body.member("model").text_or(""),
            messages=conversation.messages(history),
            tools=tools.specs(),
            max_tokens=body.member("max_output_tokens").count(),
            ignored=conversation.ignored,
        )
        streams = body.member("stream").truth()
        return ParsedRequest(request, streams=streams, freeform=frozenset(freeform))

    def body(self, parsed: ParsedRequest, answer: Answer) -> dict[str, Any]:
        return _response(parsed, answer) | {
            "status": "completed",
            "output": _items(parsed, answer),
            "usage": _usage(answer),
        }

    def events(self, parsed: ParsedRequest, answer: Answer) -> list[str]:
        return responses_stream.events(_response(parsed, answer), self.body(parsed, answer))

    def error(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        status, body = openai.error(problem)
        # Codex asks again after a 403 and not after a 400.
        return 400 if problem.kind is ProblemKind.SESSION_OVER else status, body

    def error_event(self, problem: Problem) -> str:
        return responses_stream.failure(problem)

    def tells_in_stream(self, problem: Problem) -> bool:
        # Codex knows a full context by the event alone: after a 400 it has no reason.
        return problem.kind is ProblemKind.PROMPT_TOO_LONG


def _add(conversation: Conversation, item: JsonValue) -> None:
    kind = item.member("type").text_or("message")
    if kind == "message":
        _add_message(conversation, item)
    elif kind in _CALLS:
        conversation.assistant(calls=[_call(kind, item)], continues=True)
    elif kind in _RESULTS:
        output = item.member("output")
        conversation.result(_call_id(item), _text(output) if output.is_there else Text(), item)
    elif kind == "item_reference":
        raise BadRequest(f"{item.path}: {_NOT_KEPT}", field=item.path)
    elif kind != "reasoning":
        conversation.ignore(f"input[{kind}]")


def _add_message(conversation: Conversation, item: JsonValue) -> None:
    role, content = item.member("role").text(), item.member("content")
    if role in ("system", "developer"):
        conversation.system(str(_text(content)))
    elif role == "user":
        conversation.user(_text(content), content)
    elif role == "assistant":
        conversation.assistant(str(_text(content, separator="")))
    else:
        item.member("role").refuse("system, developer, user or assistant")


def _text(content: JsonValue, separator: str = "\n") -> Text:
    return text_of(content, _TEXTS, _HIDDEN, separator)


def _call_id(item: JsonValue) -> str:
    return item.first_member("call_id", "id").text()


def _call(kind: str, item: JsonValue) -> ToolCall:
    call_id = _call_id(item)
    if kind == "local_shell_call":
        action = as_json(item.member("action").mapping())
        return ToolCall(name="local_shell", arguments=action, id=call_id)
    if kind == "custom_tool_call":
        arguments = from_freeform(call_id, item.member("input").text())
    else:
        arguments = item.member("arguments").text_or("")
    return ToolCall(name=item.member("name").text(), arguments=arguments, id=call_id)


def _response(parsed: ParsedRequest, answer: Answer) -> dict[str, Any]:
    """The response before anything is known of the reply."""
    return {
        "id": f"resp_{answer.number}",
        "object": "response",
        "created_at": 0,  # the same for a repeated request
        "status": "in_progress",
        "model": parsed.request.model,
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": parsed.request.max_tokens,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _items(parsed: ParsedRequest, answer: Answer) -> list[dict[str, Any]]:
    reply, number, items = answer.reply, answer.number, []
    if reply.reasoning:
        thought = {"type": "reasoning_text", "text": reply.reasoning}
        items.append(
            {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": [thought]}
        )
    if reply.text or not reply.tool_calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for index, call in enumerate(reply.tool_calls):
        items.append(_call_item(answer, index, call, is_freeform=call.name in parsed.freeform))
    return items


def _call_item(answer: Answer, index: int, call: ToolCall, *, is_freeform: bool) -> dict[str, Any]:
    call_id, name = answer.call_id(index), call.name
    id = f"{answer.number}_{index}"
    if is_freeform:
        call_id, text = to_freeform(call_id, call.arguments)
        item = {"type": "custom_tool_call", "id": f"ctc_{id}", "input": text}
    else:
        item = {"type": "function_call", "id": f"fc_{id}", "arguments": call.arguments}
    return item | {"call_id": call_id, "name": name, "status": "completed"}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.num_prompt_tokens + answer.num_completion_tokens,
    }
