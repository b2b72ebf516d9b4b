"""How a client ended, in its own words: from the end of what it printed.

Clients that print JSON tell it in a field of their last line: Claude Code's result, Codex's events.
Of others nothing is known but the text. What is stored is the end of the output, so a line may lack
its beginning. Pure; text is as the client wrote it, for the screen to clean.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_REASON = re.compile(r'"terminal_reason":\s*"([a-z_]+)"')
_USUAL = ("success", "completed")
"""Words of Claude Code that tell no more than that it came to its end."""
MAX_LINES = 50
"""Of the end: what it said last is in the last few."""


def last_words(printed: str) -> str | None:
    """None: it printed nothing that is known."""
    lines = printed.rstrip().splitlines()[-MAX_LINES:]
    events = [*_events(reversed(lines))]
    for event in events:
        if event.get("type") == "result":
            return _of_claude(event)
        if event.get("type") in ("turn.failed", "turn.completed", "error"):
            return _of_codex(event, events)
    cut = _REASON.search(lines[-1]) if lines else None
    return cut and cut[1]


def _events(lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """Of whole lines."""
    for line in lines:
        if line.startswith("{"):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def _of_claude(result: Mapping[str, Any]) -> str:
    words = [result.get("subtype"), result.get("terminal_reason")]
    is_error = result.get("is_error") is True
    named = [str(word) for word in words if word and not (is_error and word in _USUAL)]
    return _joined(["error" if is_error else "", *named], result.get("result"))


def _of_codex(event: Mapping[str, Any], events: list[Mapping[str, Any]]) -> str:
    kind = str(event["type"])
    error = event.get("error")
    said = error.get("message") if isinstance(error, dict) else event.get("message")
    if kind == "turn.completed":
        items = (each.get("item") for each in events if each.get("type") == "item.completed")
        texts = (
            item.get("text")
            for item in items
            if isinstance(item, dict) and item.get("type") == "agent_message"
        )
        said = next(texts, None)
    return _joined([kind], said)


def _joined(words: list[str], said: object) -> str:
    named = ", ".join(dict.fromkeys(word for word in words if word))
    return f"{named}: {said}" if isinstance(said, str) and said else named
