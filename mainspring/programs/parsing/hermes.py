"""Calls as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3.

Pure. A closing tag that is missing is forgiven where nothing else follows: JSON tells where it
ends.
"""

from collections.abc import Sequence

from mainspring.programs.parsing.json_call import call_of, encodable, json_at
from mainspring.programs.parsing.reasoning import split_reasoning
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse(text: str, tools: Sequence[ToolSpec], is_cut: bool) -> Reply:
    """See protocol.Parser."""
    reasoning, rest = split_reasoning(encodable(text))
    calls: list[ToolCall] = []
    texts: list[str] = []
    position = 0
    while tools:
        start = rest.find(OPEN, position)
        if start < 0:
            break
        texts.append(rest[position:start])
        position = start + len(OPEN)
        parsed = _call_at(rest, position)
        if parsed is None:
            texts.append(OPEN)
        else:
            calls.append(parsed[0])
            position = parsed[1]
    texts.append(rest[position:])
    text = "".join(texts)
    return Reply(
        text=text.strip() if calls else text,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        is_cut=is_cut,
    )


def _call_at(text: str, position: int) -> tuple[ToolCall, int] | None:
    """The call whose JSON begins at `position`, and where what belongs to it ends."""
    parsed = json_at(text, _after_space(text, position))
    if parsed is None:
        return None
    call = call_of(parsed[0], "arguments")
    end = _after_space(text, parsed[1])
    if call is None:
        return None
    if text.startswith(CLOSE, end):
        return call, end + len(CLOSE)
    return (call, end) if end == len(text) or text.startswith(OPEN, end) else None


def _after_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
