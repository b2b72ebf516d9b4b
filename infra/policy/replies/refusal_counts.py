"""The numbers in an endpoint's refusal of a prompt: how long it is, and how long it may be.

Pure. A number that the words do not label is not known: a wrong one would make a program compact
its history at the wrong place. Used by `chat_refusal` and `text_policy`.
"""

import re

MAX_DIGITS = 9
_NUMBER = r"(\d[\d,_]*)"
_SUM = re.compile(rf"{_NUMBER}\s*\+\s*{_NUMBER}\s*(?:>=?|exceeds)\s*{_NUMBER}")
"""As in "197202 + 21333 > 200000": prompt, reply, limit."""
_GREATER = re.compile(rf"{_NUMBER}(?: tokens?)?\s*>\s*{_NUMBER}")
_LIMIT = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:context.{{0,2}}(?:length|window|size|limit)|n_ctx)[^\d;]{{0,40}}?{_NUMBER}",
        rf"\[\d+, ?{_NUMBER}\]",
        rf"must be <= ?{_NUMBER}",
        rf"maximum[^\d;]{{0,40}}?{_NUMBER}",
        rf"{_NUMBER} maximum context",
        rf"\b(?:limit|limited to|max size|max input tokens)\b[^\d;]{{0,30}}?{_NUMBER}",
    )
)
_PROMPT = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"requested (?:about |a total of )?{_NUMBER} tokens",
        rf"{_NUMBER} (?:tokens )?(?:in|from) (?:the |your )?(?:input |messages|prompt)",
        rf"{_NUMBER} (?:of text input|input tokens|`inputs` tokens)",
        rf"(?:prompt|request|input)(?: contains| is| has| of)? "
        rf"(?:at least |about )?{_NUMBER} tokens?",
        rf"(?:prompt|input|request)(?: token)? ?(?:length|count)?[: ]*\((?:length )?{_NUMBER}",
        rf"(?:token count of|token count:|resulted in|request contains|contains) {_NUMBER}",
        rf"prompt is too long:? {_NUMBER}",
        rf"(?:current length is|got a string with length|input length) {_NUMBER}",
    )
)


def token_counts(text: str) -> tuple[int | None, int | None]:
    """Tokens of the prompt (with the reply's room, where both are told as one number), and the most
    that prompt and reply may have together, as far as the words label them."""
    if match := _SUM.search(text):
        return number(match[1]), number(match[3])
    if match := _GREATER.search(text):
        return number(match[1]), number(match[2])
    limit = _first(_LIMIT, text)
    prompt = _first(_PROMPT, text)
    if limit is None:
        return None, None
    # Less than the limit is right where the reply's length came to it.
    return prompt if prompt != limit else None, limit


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    match = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return number(match[1]) if match else None


def numbers(text: str) -> list[int]:
    return [
        n for digits in re.findall(rf"\b{_NUMBER}\b", text) if (n := number(digits)) is not None
    ]


def number(digits: str) -> int | None:
    bare = re.sub(r"[,_]", "", digits)
    return int(bare) if 0 < len(bare) <= MAX_DIGITS else None
