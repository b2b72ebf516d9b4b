"""A tool call out of JSON that a policy wrote: what of it is a call, and its arguments as text.

Invariant: no text raises, however deep, long or odd; arguments that are returned are a JSON object
in Unicode that can be encoded. Pure; imported by the parsers.
"""

import json
from typing import Any, NoReturn

from mainspring.programs.request import ToolCall


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def json_at(text: str, position: int) -> tuple[Any, int] | None:
    """The value that begins at `position`, and where it ends; None where there is none."""
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None


def call_of(value: object, *keys: str) -> ToolCall | None:
    """`value` as a call whose arguments stand under the first of `keys` that it has."""
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    arguments = next((value[key] for key in keys if key in value), {})
    if isinstance(arguments, str):
        parsed = json_at(arguments, 0)  # some policies write the object as a string
        arguments = parsed[0] if parsed and parsed[1] == len(arguments) else None
    return make_call(name, arguments)


def make_call(name: object, arguments: object) -> ToolCall | None:
    if not isinstance(name, str) or not name or not _is_encodable(name):
        return None
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not _is_encodable(text):
            text = json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return ToolCall(name=name, arguments=text)


def encodable(text: str) -> str:
    """Without halves of characters, which no JSON and no database takes."""
    return text.encode(errors="replace").decode()


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
