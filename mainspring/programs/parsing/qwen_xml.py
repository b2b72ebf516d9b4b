"""Calls as `<function=NAME><parameter=KEY>value</parameter></function>` in `<tool_call>`: Qwen3
Coder. Pure.

Values are text; what they are in JSON is told by the tool's schema. A value that is not of its
type stays a string, and so does each value of a tool that was not offered.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mainspring.programs.parsing.json_call import encodable, json_at, make_call
from mainspring.programs.parsing.reasoning import split_reasoning
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolCall, ToolSpec

OPEN = re.compile(r"<tool_call>\s*\Z")
CLOSE = re.compile(r"\s*</tool_call>")
SPACE = re.compile(r"\s*")
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_TYPES = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def parse(text: str, tools: Sequence[ToolSpec], is_cut: bool) -> Reply:
    """See protocol.Parser."""
    reasoning, rest = split_reasoning(encodable(text))
    calls: list[ToolCall] = []
    texts: list[str] = []
    position = 0
    while tools:
        start = rest.find(FUNCTION, position)
        if start < 0:
            break
        parsed = _call_at(rest, start, tools)
        if parsed is None:
            end = start + len(FUNCTION)
            texts.append(rest[position:end])
            position = end
            continue
        call, end = parsed
        texts.append(OPEN.sub("", rest[position:start]))
        closing = CLOSE.match(rest, end)
        position = closing.end() if closing else end
        calls.append(call)
    texts.append(rest[position:])
    text = "".join(texts)
    return Reply(
        text=text.strip() if calls else text,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        is_cut=is_cut,
    )


def _call_at(text: str, start: int, tools: Sequence[ToolSpec]) -> tuple[ToolCall, int] | None:
    """The call whose `<function=` is at `start`, and where it ends."""
    head = _tag(text, start, FUNCTION)
    if head is None:
        return None
    name, position = head
    types = _types_of(name, tools)
    arguments: dict[str, Any] = {}
    while True:
        position = _after_space(text, position)
        if text.startswith(FUNCTION_END, position):
            call = make_call(name, arguments)
            return None if call is None else (call, position + len(FUNCTION_END))
        head = _tag(text, position, PARAMETER)
        if head is None:
            return None
        key, begin = head
        end = text.find(PARAMETER_END, begin)
        if end < 0:
            return None
        arguments[key] = _typed(_value(text[begin:end]), types.get(key, frozenset()))
        position = end + len(PARAMETER_END)


def _tag(text: str, start: int, opening: str) -> tuple[str, int] | None:
    """The name in a tag that begins at `start`, and where the tag ends."""
    if not text.startswith(opening, start):
        return None
    begin = start + len(opening)
    end = text.find(">", begin, begin + 200)
    name = text[begin:end].strip() if end >= 0 else ""
    return (name, end + 1) if name else None


def _value(text: str) -> str:
    """Without the one line break that the format puts at each end."""
    return text.removeprefix("\n").removesuffix("\n")


def _typed(text: str, types: frozenset[str]) -> Any:
    if not types or ("string" in types and not ("null" in types and text == "null")):
        return text
    written = text.strip()
    written = {"True": "true", "False": "false", "None": "null"}.get(written, written)
    parsed = json_at(written, 0)
    if parsed is None or parsed[1] != len(written):
        return text
    value = parsed[0]
    fits = any(isinstance(value, _TYPES[name]) for name in types & _TYPES.keys())
    return value if fits and (not isinstance(value, bool) or "boolean" in types) else text


def _types_of(name: str, tools: Sequence[ToolSpec]) -> dict[str, frozenset[str]]:
    """Names of the JSON types that each parameter of a tool may have."""
    tool = next((tool for tool in tools if tool.name == name), None)
    properties = tool.parameters.get("properties") if tool else None
    if not isinstance(properties, Mapping):
        return {}
    return {str(key): frozenset(_types_in(schema)) for key, schema in properties.items()}


def _types_in(schema: object) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    declared = schema.get("type", [])
    names = [declared] if isinstance(declared, str) else declared
    types = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else []:
            inner = choice.get("type") if isinstance(choice, Mapping) else None
            types += [inner] if isinstance(inner, str) else []
    return types


def _after_space(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    return match.end() if match else position
