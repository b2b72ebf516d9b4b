"""OpenAI's chat completions.

Length is told as `length`, reasoning as `reasoning_content`, which clients of open models read.
Pure; the tests hold every answer against the types of the package `openai`.
"""

from typing import Any

from gateway.dialects import openai, sse
from gateway.dialects.conversation import Conversation, Text, Toolbox
from gateway.dialects.json_value import BadRequest, JsonValue
from gateway.dialects.openai import text_of
from gateway.dialects.protocol import Envelope, ParsedRequest, Problem, ProblemKind
from mainspring.programs.reply import Answer, Reply
from mainspring.programs.request import Dialect, ModelRequest, ToolCall

_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "seed": (),
    "stop": ([],),
    "temperature": (),
    "tool_choice": ("auto",),
    "top_k": (),
    "top_logprobs": (0,),
    "top_p": (1,),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields that are ignored, with the values that would have had no effect either."""
_INSTEAD_OF_FUNCTIONS = "functions are an older form: send them as tools"
_TEXTS = ("text",)
_HIDDEN = ("image_url", "input_audio", "file", "video_url")


class Chat:
    waiting = sse.COMMENT

    def parse(self, body: JsonValue, envelope: Envelope) -> ParsedRequest:
        if (body.member("n").count() or 1) > 1:
            raise BadRequest("n must be 1: one reply is sampled for a request", field="n")
        for name in ("functions", "function_call"):
            if body.member(name).is_there:
                raise BadRequest(_INSTEAD_OF_FUNCTIONS, field=name)
        conversation = Conversation()
        conversation.ignore_set(body, _WITHOUT_EFFECT)
        for message in body.member("messages").items():
            _add(conversation, message)
        tools = Toolbox()
        for tool in body.member("tools").items_if_there():
            if (kind := tool.member("type").text_or("function")) == "function":
                function = tool.member("function")
                tools.add(function, function.member("parameters"))
            else:
                conversation.ignore(f"tools[{kind}]")
        request = ModelRequest(
            dialect=Dialect.CHAT,
            model=body.member("model").text_or(""),
            messages=conversation.messages(body.member("messages")),
            tools=tools.specs(),
            max_tokens=body.first_member("max_completion_tokens", "max_tokens").count(),
            is_subagent=bool(envelope.headers.get("x-parent-session-id")),
            ignored=conversation.ignored,
        )
        options = body.member("stream_options")
        return ParsedRequest(
            request,
            streams=body.member("stream").truth(),
            includes_usage=options.is_there and options.member("include_usage").truth(),
        )

    def body(self, parsed: ParsedRequest, answer: Answer) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": _content(answer.reply), "refusal": None}
            | _reasoning(answer.reply.reasoning)
            | ({"tool_calls": _calls(answer)} if answer.reply.tool_calls else {}),
            "logprobs": None,
            "finish_reason": answer.reply.finish.value,
        }
        head = _head(parsed, answer, "chat.completion")
        return head | {"choices": [choice], "usage": _usage(answer)}

    def events(self, parsed: ParsedRequest, answer: Answer) -> list[str]:
        head = _head(parsed, answer, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse.event(head | {"choices": [choice]})

        reply = answer.reply
        events = [chunk({"role": "assistant", "content": _content(reply) and ""})]
        events += [chunk(_reasoning(part)) for part in sse.deltas(reply.reasoning)]
        events += [chunk({"content": part}) for part in sse.deltas(reply.text)]
        for index, call in enumerate(_calls(answer)):
            function = call["function"]
            opening = call | {"index": index, "function": function | {"arguments": ""}}
            events.append(chunk({"tool_calls": [opening]}))
            for part in sse.deltas(function["arguments"]):
                piece = {"index": index, "function": {"arguments": part}}
                events.append(chunk({"tool_calls": [piece]}))
        events.append(chunk({}, reply.finish.value))
        if parsed.includes_usage:
            events.append(sse.event(head | {"choices": [], "usage": _usage(answer)}))
        return [*events, "data: [DONE]\n\n"]

    def error(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        status, body = openai.error(problem)
        # litellm, and so mini-swe-agent, asks again for minutes after a 403 and not after a 401.
        return 401 if problem.kind is ProblemKind.SESSION_OVER else status, body

    def error_event(self, problem: Problem) -> str:
        return sse.event(openai.error(problem)[1])

    def tells_in_stream(self, problem: Problem) -> bool:
        return False


def _add(conversation: Conversation, message: JsonValue) -> None:
    role, content = message.member("role").text(), message.member("content")
    if role in ("system", "developer"):
        conversation.system(str(_text(content)))
    elif role == "user":
        conversation.user(_text(content), content)
    elif role == "assistant":
        if message.member("function_call").is_there:
            raise BadRequest(_INSTEAD_OF_FUNCTIONS, field=message.path)
        calls = [_call(call) for call in message.member("tool_calls").items_if_there()]
        text = str(_text(content, separator="")) if content.is_there else ""
        conversation.assistant(text, calls)
    elif role == "tool":
        text = _text(content) if content.is_there else Text()
        conversation.result(message.member("tool_call_id").text(), text, message)
    else:
        message.member("role").refuse("system, developer, user, assistant or tool")


def _text(content: JsonValue, separator: str = "\n") -> Text:
    return text_of(content, _TEXTS, _HIDDEN, separator)


def _call(call: JsonValue) -> ToolCall:
    function = call.member("function")
    return ToolCall(
        name=function.member("name").text(),
        arguments=function.member("arguments").text_or(""),
        id=call.member("id").text(),
    )


def _head(parsed: ParsedRequest, answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": 0,  # the same for a repeated request
        "model": parsed.request.model,
    }


def _content(reply: Reply) -> str | None:
    return None if reply.tool_calls and not reply.text else reply.text


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning_content": text} if text else {}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": answer.call_id(index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(answer.reply.tool_calls)
    ]


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_completion_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_completion_tokens,
    }
