"""A chat completion as endpoints write it, read into what it holds. Pure; used by `openai`.

Invariant: only what the policy itself ended is a reply. One that the endpoint broke off, by an
outage of its own or by a filter, raises NotWhole. What is not told (counts, reasoning) is none;
what has another shape raises one of OTHER_SHAPE.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from mainspring.programs.request import ToolCall

MAX_COUNT = 2**31 - 1
"""Most tokens that the store can count."""
OTHER_SHAPE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
_REASONING = ("reasoning_content", "reasoning")
"""Reasoning's field in a message: servers have two names for it."""
_FILTERED = re.compile(
    r"content|filter|safety|sensitive|refus|recitation|blocklist|prohibited|spii|toxic|moderat|guardrail"
    r"|policy|flagged",
    re.IGNORECASE,
)
_CUT = re.compile(
    r"abort|cancel|error(?!_limit)|fail|interrupt|time_?out|insufficient|unavailable|shut_?down"
    r"|overload|evict|preempt|incomplete|disconnect|network|killed|dropped",
    re.IGNORECASE,
)
"""Finish reasons of a cut reply: those of services differ, and they are written in any case."""


class NotWhole(Exception):
    """The endpoint ended the reply, and not the policy."""

    def __init__(self, finish_reason: str, *, filtered: bool) -> None:
        super().__init__(finish_reason)
        self.finish_reason = finish_reason
        self.filtered = filtered
        """By its content filter."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    text: str
    finish_reason: str
    """Empty where the endpoint tells none."""
    latency_s: float
    num_prompt_tokens: int | None
    """As the endpoint counts them; None when it does not report them."""
    num_completion_tokens: int | None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.reasoning or self.tool_calls)


def read(body: Any) -> ChatReply:
    """Raises NotWhole, and one of OTHER_SHAPE."""
    choice = body["choices"][0]
    reason, usage = choice.get("finish_reason"), body.get("usage")
    ended = reason.strip() if isinstance(reason, str) and reason.isprintable() else ""
    _check_whole(ended)
    message = choice["message"]
    return ChatReply(
        text=_text(message.get("content")),
        finish_reason=ended,
        latency_s=0.0,
        num_prompt_tokens=_count(usage, "prompt_tokens"),
        num_completion_tokens=_count(usage, "completion_tokens"),
        reasoning=_reasoning(message),
        tool_calls=tuple(_call(tool_call) for tool_call in message.get("tool_calls") or ()),
    )


def _check_whole(finish_reason: str) -> None:
    if _FILTERED.search(finish_reason):
        raise NotWhole(finish_reason, filtered=True)
    if _CUT.search(finish_reason):
        raise NotWhole(finish_reason, filtered=False)


def _reasoning(message: dict[str, Any]) -> str:
    for name in _REASONING:
        if isinstance(text := message.get(name), str):
            return text
    return ""


def _text(content: object) -> str:
    """Text of a message: its string, or that among its parts. None: a model that only thought."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError(f"content is of type {type(content).__name__}")
    texts = [part["text"] for part in content if part.get("type", "text") == "text"]
    return "".join(texts)


def _call(call: dict[str, Any]) -> ToolCall:
    name, arguments = call["function"]["name"], call["function"].get("arguments")
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call has no name")
    if not isinstance(arguments, str):  # some servers give the object itself
        arguments = json.dumps({} if arguments is None else arguments)
    return ToolCall(name=name, arguments=arguments)


def _count(usage: object, name: str) -> int | None:
    """A wrong count is none: the reply beside it was paid for and can be used."""
    count = usage.get(name) if isinstance(usage, dict) else None
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    return count if 0 <= count <= MAX_COUNT else None
