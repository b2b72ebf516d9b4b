"""How a client ended, in its own words, and whether its context was full: from the end of what it
printed.

Clients that print JSON tell it in a field of their last line: Claude Code's result, Codex's events.
Of others nothing is known but the text. What is stored is the end of the output, so a line may lack
its beginning. Pure; text is as the client wrote it, for the screen to clean. Read by the screen of
a rollout, and by the activities that run programs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_REASON = re.compile(r'"terminal_reason":\s*"([a-z_]+)"')
_USUAL = ("success", "completed")
"""Words of Claude Code that tell no more than that it came to its end."""
_FULL_REASONS = ("prompt_too_long", "rapid_refill_breaker", "blocking_limit")
"""Claude Code's: the endpoint refused the prompt; what it summed up was full again at once; it did
not ask, as its own count was above the model's context."""
_FULL_WORDS = re.compile(
    r"\bran out of room\b|context[ _](window|length)|prompt is too long", re.IGNORECASE
)
"""Words of a client's error: Codex's own sentence, the code that endpoints give, and Claude Code's
result where its version tells no reason."""
MAX_LINES = 50
"""Lines of the end: what it said last is in the last few."""


def last_words(printed: str) -> str | None:
    """None: it printed nothing that is known."""
    lines = printed.rstrip().split("\n")[-MAX_LINES:]
    events = [*_events(reversed(lines))]
    for event in events:
        if event.get("type") == "result":
            return _of_claude(event)
        if event.get("type") in ("turn.failed", "turn.completed", "error"):
            return _of_codex(event, events)
    cut = _REASON.search(lines[-1]) if lines else None
    return cut and cut[1]


def filled_context(printed: str) -> bool:
    """Whether the client ended because its context was full, as it tells itself. Of clients that
    print no JSON nothing is told here."""
    lines = printed.rstrip().split("\n")[-MAX_LINES:]
    for event in _events(reversed(lines)):
        kind = event.get("type")
        if kind == "result":
            is_error = event.get("is_error") is True
            message = event.get("result") if is_error else None
            return event.get("terminal_reason") in _FULL_REASONS or _tells_full(message)
        if kind in ("turn.failed", "error"):
            return _tells_full(_error_of(event))
        if kind == "turn.completed":
            return False
    cut = _REASON.search(lines[-1]) if lines else None
    return cut is not None and cut[1] in _FULL_REASONS


def _tells_full(message: object) -> bool:
    return isinstance(message, str) and bool(_FULL_WORDS.search(message))


def _error_of(event: Mapping[str, Any]) -> object:
    """Codex's message of an event that tells a failure."""
    error = event.get("error")
    return error.get("message") if isinstance(error, dict) else event.get("message")


def _events(lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """Events in whole lines."""
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
    message = _error_of(event)
    if kind == "turn.completed":
        items = (
            earlier.get("item") for earlier in events if earlier.get("type") == "item.completed"
        )
        texts = (
            item.get("text")
            for item in items
            if isinstance(item, dict) and item.get("type") == "agent_message"
        )
        message = next(texts, None)
    return _joined([kind], message)


def _joined(words: list[str], message: object) -> str:
    named = ", ".join(dict.fromkeys(word for word in words if word))
    return f"{named}: {message}" if isinstance(message, str) and message else named
