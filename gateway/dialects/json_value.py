"""The JSON of a request body, read by people who must name the field that is wrong.

Invariants: whatever bytes come in, the result is a value or a `BadRequest`; a decoded value holds
no lone surrogates, no infinities and no deeper nesting than MAX_DEPTH, so that it can be stored as
JSON again. Pure. Imported by the dialects and the gateway's HTTP side.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from mainspring.errors import MainspringError
from mainspring.status import FaultKind

MAX_DEPTH = 100
"""Levels of nesting; pydantic stops writing JSON at 255, and clients' schemas have some 15."""
MAX_SHOWN_CHARS = 200
"""Longest quote of what a client sent, in a message to it."""
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}


class BadRequest(MainspringError):
    """The client's request cannot be taken as it is; asking again gives the same."""

    fault = FaultKind.POLICY_REFUSED

    def __init__(self, message: str, *, field: str | None = None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.field = field


def decoded(body: bytes) -> "JsonValue":
    """The whole body, which must be a JSON object."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # bad UTF-8, bad JSON, a number of thousands of digits
        raise BadRequest(f"the request body is not valid JSON: {_short(str(error))}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the request body must be a JSON object, got {_kind(value)}")
    return JsonValue(cleaned(value, 0), "")


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value, and where it stands in the body: `messages[3].content`. Null and absent are one."""

    value: Any
    path: str

    def member(self, name: str) -> "JsonValue":
        path = f"{self.path}.{name}" if self.path else name
        return JsonValue(self.mapping().get(name), path)

    def first_member(self, *names: str) -> "JsonValue":
        """That of the first name which is there: some fields have two."""
        members = [self.member(name) for name in names]
        return next((member for member in members if member.is_there), members[0])

    @property
    def is_there(self) -> bool:
        return self.value is not None

    @property
    def is_text(self) -> bool:
        return isinstance(self.value, str)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def mapping(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else self.refuse("an object")

    def items(self) -> Iterator["JsonValue"]:
        if not isinstance(self.value, list):
            self.refuse("a list")
        for index, value in enumerate(self.value):
            yield JsonValue(value, f"{self.path}[{index}]")

    def items_if_there(self) -> Iterator["JsonValue"]:
        return self.items() if self.is_there else iter(())

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else self.refuse("text")

    def text_or(self, default: str) -> str:
        return self.text() if self.is_there else default

    def truth(self) -> bool:
        """Value of an optional boolean: absent is false."""
        if self.value is None or isinstance(self.value, bool):
            return bool(self.value)
        return self.refuse("a boolean")

    def count(self) -> int | None:
        """A whole number of at least 1, if there."""
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("a whole number")
        return self.value if self.value >= 1 else self.refuse("at least 1")

    def refuse(self, expected: str) -> NoReturn:
        raise BadRequest(
            f"{self.path or 'the body'} must be {expected}, got {_kind(self.value)}",
            field=self.path or None,
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def cleaned(value: Any, depth: int) -> Any:
    """`value`, which stands at `depth`, with U+FFFD for halves of characters: clients that cut text
    by UTF-16 units send such. Raises BadRequest."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        raise _too_deep()
    if isinstance(value, dict):
        return {cleaned(key, depth): cleaned(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest("the request body has a number that is too large")
    return value


def _too_deep() -> BadRequest:
    return BadRequest(f"the request body is nested more than {MAX_DEPTH} levels deep")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value)) or _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
