"""Every field of a configuration with its value and where that comes from, as lines of TOML.

Invariant: a file of these lines is read as the same configuration. Pure; imported by commands.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

DEFAULT = "default"
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumped(config: BaseModel, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Lines of TOML with the origin of each. `origins`: by dotted field; a field that is not among
    them, and is not part of one, has its default."""
    for path, value in _leaves(config.model_dump(mode="json")):
        origin = _origin(path, origins)
        name = ".".join(map(_key, path))
        line = f"# {name} is unset" if value is None else f"{name} = {_text(value)}"
        yield line, origin


def _origin(path: tuple[str, ...], origins: Mapping[str, str]) -> str:
    for length in range(len(path), 0, -1):
        if origin := origins.get(".".join(path[:length])):
            return origin
    dotted = ".".join(path)
    inside = [origin for name, origin in origins.items() if name.startswith(f"{dotted}.")]
    # A list whose entries were set one by one.
    return ", ".join(dict.fromkeys(inside)) or DEFAULT


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        given = ((name, each) for name, each in value.items() if each is not None)
        inside = ", ".join(f"{_key(name)} = {_text(each)}" for name, each in given)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    # JSON's texts, numbers and booleans are TOML's, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
