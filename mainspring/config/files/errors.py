"""Mistakes in a campaign file, in plain words: all of them at once, one line each.

Invariants: the field stands first, then what it must be and what was found; a name that is not
known comes with the nearest that is. Pure; imported by `reading`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

MAX_LINES = 8
MAX_CHARS = 60
"""Length of a value that is shown."""
_LINE = re.compile(r"at line (\d+)")
_PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "int_parsing": "must be a whole number",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_parsing": "must be a number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "bool_parsing": "must be true or false",
        "bool_type": "must be true or false",
        "string_type": 'must be text in quotes ("...")',
        "tuple_type": "must be a list ([...])",
        "list_type": "must be a list ([...])",
        "dict_type": "must be a table ({...})",
        "model_type": "must be a section ([...])",
        "model_attributes_type": "must be a section ([...])",
    }
)
_BOUNDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "greater_than_equal": ("must be at least", "ge"),
        "greater_than": ("must be greater than", "gt"),
        "less_than_equal": ("must be at most", "le"),
        "less_than": ("must be less than", "lt"),
    }
)


def explain(
    error: ValidationError, model: type[BaseModel], named: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """A line for each mistake, at most MAX_LINES. `named` gives what a field is called where it was
    given otherwise, as in an option of a command."""
    lines = []
    mistakes = error.errors()
    # A list is called too short where one of its entries is wrong.
    within = {
        mistake["loc"][:length] for mistake in mistakes for length in range(len(mistake["loc"]))
    }
    for mistake in mistakes:
        if mistake["type"] == "too_short" and mistake["loc"] in within:
            continue
        # One form of several is told by a tag, which is no part of a file.
        mistake["loc"] = tuple(part for part in mistake["loc"] if not str(part).startswith("<"))
        path = ".".join(map(str, mistake["loc"]))
        sentence = _said(mistake, model)
        lines.append(f"{named.get(path, path)}: {sentence}" if path else sentence)
    return shortened(lines)


def shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[: MAX_LINES - 1], f"... and {len(lines) - MAX_LINES + 1} more"]


def syntax_lines(error: Exception, text: str) -> str:
    """The parser's words, and the line they are about."""
    match = _LINE.search(str(error))
    lines = text.splitlines()
    if match is None or not 0 < int(match[1]) <= len(lines):
        return str(error)
    return f"{error}\n    {lines[int(match[1]) - 1].strip()}"


def shown(value: Any) -> str:
    text = repr(value.value if isinstance(value, Enum) else value)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}..."


def _said(error: Any, model: type[BaseModel]) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        near = _nearest(error["loc"], model)
        return f"no such field; did you mean {near}?" if near else "no such field"
    if kind == "missing":
        return "is missing"
    if kind in _PLAIN:
        return f"{_PLAIN[kind]}, not {shown(value)}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        bound = context[key]
        number = f"{bound:g}" if abs(bound) < 1e6 else f"{bound:,.0f}"
        return f"{words} {number}, not {shown(value)}"
    if kind in ("enum", "literal_error"):
        near = difflib.get_close_matches(
            str(value), re.findall(r"'([^']*)'", context["expected"]), 1
        )
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"must be {context['expected']}, not {shown(value)}{hint}"
    if kind in ("too_short", "string_too_short"):
        return f"must have at least {context['min_length']} {_unit(kind, context['min_length'])}"
    if kind in ("too_long", "string_too_long"):
        most = context["max_length"]
        suffix = f", not {shown(value)}" if kind == "too_long" else ""
        return f"must have at most {most} {_unit(kind, most)}{suffix}"
    message = error["msg"].removeprefix("Value error, ")
    return "; ".join(line.strip() for line in message.splitlines())


def _unit(kind: str, number: int) -> str:
    noun = "character" if kind.startswith("string_") else "entry"
    return noun if number == 1 else {"entry": "entries"}.get(noun, f"{noun}s")


def _nearest(location: tuple[Any, ...], model: type[BaseModel]) -> str | None:
    """The field that was meant: one like it in its section, else one of its name elsewhere."""
    *section, name = (str(part) for part in location)
    at = model
    for part in section:
        inner = None if at is None else _section(at, part)
        if inner is not None:
            at = inner
    close = difflib.get_close_matches(name, _given(at), 1)
    if close:
        return close[0]
    # Of fields with the same name, the first in a file.
    everywhere = dict(reversed([*_fields(model)]))
    if name in everywhere:
        return everywhere[name]
    close = difflib.get_close_matches(name, everywhere, 1, cutoff=0.8)
    return everywhere[close[0]] if close else None


def _fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    for name in _given(model):
        inner = _section(model, name)
        if inner is None:
            yield name, f"{path}{name}"
        else:
            yield name, f"[{path}{name}]"
            yield from _fields(inner, f"{path}{name}.")


def _given(model: type[BaseModel]) -> list[str]:
    """Fields that a file may have; the kind of a run is given by the command."""
    return [
        name
        for name, field in model.model_fields.items()
        if not field.exclude and not _is_a_form(field)
    ]


def _is_a_form(field: FieldInfo) -> bool:
    """Whether it is its section written as a list, in whose place a file has the section."""
    return (field.alias or "").startswith("<")


def _section(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    if name.isdigit():
        field = next(filter(_is_a_form, model.model_fields.values()), None)
    if field is None:
        return None
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
