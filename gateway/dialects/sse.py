"""Server-sent events as text. Pure; imported by the dialects."""

import json
from collections.abc import Iterator
from typing import Any

MAX_DELTA_CHARS = 4096
"""Longest text of one event: clients read events by line, some with a bound of 64 KiB."""
COMMENT = ": waiting\n\n"
"""Keeps a connection open and is no event."""


def event(data: dict[str, Any], name: str | None = None) -> str:
    """ASCII, so no character of a text can end a line."""
    first = f"event: {name}\n" if name else ""
    return f"{first}data: {json.dumps(data)}\n\n"


def deltas(text: str) -> Iterator[str]:
    for start in range(0, len(text), MAX_DELTA_CHARS):
        yield text[start : start + MAX_DELTA_CHARS]
