"""A rollout as spans: what happened when, as a tree, in the form that trackers show.

Invariants: ids follow from the campaign's uid, the rollout and its epoch, so that a trace which is
written twice is written once; a span ends no earlier than it begins; texts have bounded lengths.
Pure. Imported by the readers of stored rollouts and by trackers.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from mainspring.words.causes import shortened
from mainspring.words.plain_text import plain

TEXT_CHARS = 4_000
"""Characters of one text in a trace: its beginning and its end. The store has the whole."""
_GEN_AI = {
    "operation": "gen_ai.operation.name",
    "model": "gen_ai.request.model",
    "temperature": "gen_ai.request.temperature",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
Value: TypeAlias = str | int | float | bool
Content: TypeAlias = Mapping[str, Value]


class SpanKind(StrEnum):
    ROLLOUT = "rollout"
    """The whole rollout: the root."""
    TURN = "turn"
    """A reply, and what it caused."""
    REPLY = "reply"
    """One reply of the policy."""
    COMMAND = "command"
    """One command in the sandbox."""
    JUDGE = "judge"
    """One judgement, of a turn or of the rollout."""
    GRADE = "grade"
    """The verdict's tests."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    name: str
    """Unique among its siblings."""
    kind: SpanKind
    start: datetime
    end: datetime
    attributes: Content = field(default_factory=dict)
    inputs: Content = field(default_factory=dict)
    outputs: Content = field(default_factory=dict)
    error: str | None = None
    """Why it failed; None: it did not."""
    children: tuple["TraceSpan", ...] = ()

    def __post_init__(self) -> None:
        assert self.start <= self.end, f"span {self.name} ends before it begins"


@dataclass(frozen=True, slots=True)
class PlacedSpan:
    span: TraceSpan
    id: int
    """64 bits, not 0; unique in its trace."""
    parent: int | None
    """None: the root."""


@dataclass(frozen=True, slots=True)
class Trace:
    key: str
    """Text that its ids follow from: no other trace has it, in whatever store."""
    root: TraceSpan
    tags: Mapping[str, str]

    @property
    def id(self) -> int:
        """128 bits, not 0."""
        return _number(self.key, 16)

    def spans(self) -> Iterator[PlacedSpan]:
        """The root first, each before its children."""
        yield from self._placed(self.root, self.key, None)

    def _placed(self, span: TraceSpan, path: str, parent: int | None) -> Iterator[PlacedSpan]:
        path = f"{path}\n{span.name}"
        placed = PlacedSpan(span, _number(path, 8), parent)
        yield placed
        for child in span.children:
            yield from self._placed(child, path, placed.id)


def _number(text: str, num_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:num_bytes], "big") or 1


def attribute_name(name: str) -> str:
    """A fact's name in OpenTelemetry: its own one for generative AI, else one of Mainspring's."""
    return _GEN_AI.get(name, f"mainspring.{name}")


def bounded(text: str) -> str:
    """A text as a trace has it."""
    # What is cut away of megabytes is not searched first.
    return shortened(plain(shortened(text, 4 * TEXT_CHARS)), TEXT_CHARS)


def present(**content: Value | None) -> dict[str, Value]:
    """Without what is None: it was not measured, or does not apply."""
    return {name: value for name, value in content.items() if value is not None}
