"""What an endpoint tells of a request that it refuses: its words, and the numbers in them. Pure.

Each server has its own words; numbers that are not found are not known. Used by `openai` and
`program_text_policy`.
"""

import json
import re

SAID_CHARS = 1000
"""Kept of what it tells; a program is told that much."""
MAX_DIGITS = 9
_CONTEXT_FULL = re.compile(
    r"context.?(length|window|size)|(prompt|input) is too long|token count.*exceeds", re.IGNORECASE
)
"""In the message of a 400: OpenAI's code for it is not what the others send."""
_LIMIT = (
    re.compile(r"(\d+)\D{0,10}maximum\b", re.IGNORECASE),
    re.compile(r"(?:context.?(?:length|window|size)|maximum|limit)\D{0,40}?(\d+)", re.IGNORECASE),
)
"""As in "300 tokens > 200 maximum"; as in "maximum context length is 200 tokens"."""


def words_of(body: str) -> str:
    """The sentence in an error's body, whatever it is wrapped in."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = body
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    text = found if isinstance(found, str) else json.dumps(found)
    return " ".join(text.split())[:SAID_CHARS]


def is_context_full(said: str) -> bool:
    return _CONTEXT_FULL.search(said) is not None


def token_counts(said: str) -> tuple[int | None, int | None]:
    """Of the prompt, and the most that prompt and reply may have together."""
    found = next((found for each in _LIMIT if (found := each.search(said))), None)
    limit = _number(found[1]) if found else None
    if limit is None:
        return None, None
    beyond = [n for each in re.findall(r"\d+", said) if (n := _number(each)) and n > limit]
    return max(beyond, default=None), limit


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_DIGITS else None
