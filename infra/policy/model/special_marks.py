"""Special tokens in other people's text: marked while a chat template is rendered around it.

Invariants: after `Guard.guarded` no text holds a special token, nor the beginning or the end of one
that the template or another text could complete; `split` gives back each as it was written, apart
from the template's own. All else is left as it is, so that templates find what they look for.
Pure; used by `request_text`.
"""

import re
from collections.abc import Sequence
from typing import Any

MARK = "mark0f8c1d"
"""Begins what stands for a special token; a letter is added while a text holds it."""


class SpecialTexts:
    """The special tokens of one tokenizer, and the pieces that others may complete."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.whole = re.compile(
            "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
        )
        self._prefixes = {text[:end] for text in texts for end in range(1, len(text))}
        self._suffixes = {text[start:] for text in texts for start in range(1, len(text))}
        self._joined = "\n".join(texts)
        self._longest = max((len(text) for text in texts), default=1) - 1

    def count(self, text: str) -> int:
        return len(self.whole.findall(text)) if self.whole.pattern else 0

    def is_inside(self, text: str) -> bool:
        """Whether `text` is part of a special token: completed on both sides it would be one."""
        return len(text) <= self._longest and text in self._joined

    def end_of(self, text: str) -> int:
        """Length of the special token's beginning that `text` begins with the rest of, or 0."""
        return _longest(self._suffixes, (text[:end] for end in self._lengths(text)))

    def start_of(self, text: str) -> int:
        """Length of the special token's beginning that `text` ends with, or 0."""
        return _longest(self._prefixes, (text[-end:] for end in self._lengths(text)))

    def _lengths(self, text: str) -> range:
        return range(min(self._longest, len(text)), 0, -1)


class Guard:
    """For the texts of one rendering."""

    def __init__(self, special: SpecialTexts, *, marks_inside: bool = False) -> None:
        """`marks_inside`: texts that are part of a special token are marked whole. Many an ordinary
        word is, and templates ask for some, so only where it makes a difference."""
        self._special = special
        self._marks_inside = marks_inside
        self.has_inside = False
        """Whether there was such a text."""
        self._marked: list[str] = []
        self._mark = MARK

    def guarded(self, value: Any) -> Any:
        """`value`, of JSON's types, with marks for the special tokens in its texts and keys."""
        while _holds(value, self._mark):
            self._mark += "z"
        return self._guarded(value)

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """Pieces of what the template made of guarded texts, in order, and whether each is a
        special token that stays text."""
        if not self._marked:
            return [(rendered, False)]
        pieces: list[tuple[str, bool]] = []
        # A mark is followed by its number and an end that is no digit.
        for place, piece in enumerate(re.split(rf"{self._mark}(\d+)x", rendered)):
            if place % 2:
                pieces.append((self._marked[int(piece)], True))
            elif piece:
                pieces.append((piece, False))
        return pieces

    def _guarded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._guarded(key): self._guarded(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._guarded(inner) for inner in value]
        return value

    def _text(self, text: str) -> str:
        if not text.isascii():
            text = text.encode(errors="replace").decode()  # halves of characters have no tokens
        if self._special.whole.pattern:
            text = self._special.whole.sub(lambda match: self._mark_for(match[0]), text)
        # Templates trim: what is at the edge of a text is what is not space there.
        inner = text.strip()
        if not inner:
            return text
        if self._special.is_inside(inner):
            self.has_inside = True
            if self._marks_inside:
                return self._mark_for(text)
        before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        length = self._special.start_of(inner)
        if length:
            inner = inner[:-length] + self._mark_for(inner[-length:])
        length = self._special.end_of(inner)
        if length:
            inner = self._mark_for(inner[:length]) + inner[length:]
        return before + inner + after

    def _mark_for(self, text: str) -> str:
        self._marked.append(text)
        return f"{self._mark}{len(self._marked) - 1}x"


def _longest(affixes: set[str], pieces: Any) -> int:
    return next((len(piece) for piece in pieces if piece in affixes), 0)


def _holds(value: Any, mark: str) -> bool:
    if isinstance(value, str):
        return mark in value
    if isinstance(value, dict):
        return any(_holds(key, mark) or _holds(inner, mark) for key, inner in value.items())
    return isinstance(value, list | tuple) and any(_holds(inner, mark) for inner in value)
