"""The seam between the gateway's HTTP side and a dialect.

Invariants: pure; the same answer gives the same bytes, so that a repeated request is told what the
first was; an answer's last event is the one without which clients do not take it as complete.
Implemented by `chat`, `responses`, `messages` and `gemini`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gateway.dialects.json_value import JsonValue
from mainspring.programs.reply import Answer
from mainspring.programs.request import ModelRequest


class ProblemKind(StrEnum):
    """Kind of problem, as far as a client can act on it."""

    BAD_REQUEST = "bad_request"
    """The request cannot be taken as it is."""
    BODY_TOO_LARGE = "body_too_large"
    """More bytes than the gateway reads."""
    BODY_TOO_SLOW = "body_too_slow"
    """The body did not arrive in time."""
    UNKNOWN_KEY = "unknown_key"
    """No key, or one that belongs to no session."""
    UNKNOWN_ROUTE = "unknown_route"
    """Nothing is served at this path."""
    WRONG_METHOD = "wrong_method"
    """The path is served for another method."""
    SESSION_OVER = "session_over"
    """The rollout has ended: clients must stop asking."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The client may compact its history and ask again."""
    UNAVAILABLE = "unavailable"
    """A service behind the gateway is down; asking again helps."""
    INTERNAL = "internal"
    """A fault of the gateway's own; asking again may help."""


STATUSES = {
    ProblemKind.BAD_REQUEST: 400,
    ProblemKind.BODY_TOO_LARGE: 413,
    ProblemKind.BODY_TOO_SLOW: 408,
    ProblemKind.UNKNOWN_KEY: 401,
    ProblemKind.UNKNOWN_ROUTE: 404,
    ProblemKind.WRONG_METHOD: 405,
    ProblemKind.SESSION_OVER: 403,
    ProblemKind.PROMPT_TOO_LONG: 400,
    ProblemKind.UNAVAILABLE: 503,
    ProblemKind.INTERNAL: 500,
}


@dataclass(frozen=True, slots=True)
class Problem:
    kind: ProblemKind
    message: str
    """For the client: names no host and no path of the gateway's machine."""
    field: str | None = None
    """Field of the request's body."""
    max_context: int | None = None
    """Where the prompt is longer."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Facts that a request tells outside its body."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    model: str = ""
    """Where the path names it."""
    streams: bool = False
    """Where the path tells it."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request, with what only the writing of its answer needs."""

    request: ModelRequest
    streams: bool
    includes_usage: bool = False
    """Chat: the stream ends with the counts."""
    freeform: frozenset[str] = frozenset()
    """Responses: names of tools that take text in place of JSON."""


class DialectWire(Protocol):
    @property
    def waiting(self) -> str:
        """Bytes that a stream may hold before its first event."""
        ...

    def parse(self, body: JsonValue, envelope: Envelope) -> ParsedRequest:
        """Raises BadRequest."""
        ...

    def body(self, parsed: ParsedRequest, answer: Answer) -> dict[str, Any]: ...

    def events(self, parsed: ParsedRequest, answer: Answer) -> list[str]:
        """Whole server-sent events, at least one."""
        ...

    def error(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        ...

    def error_event(self, problem: Problem) -> str:
        """For a stream that has begun."""
        ...

    def tells_in_stream(self, problem: Problem) -> bool:
        """Whether clients that asked for a stream take this problem better as an event."""
        ...
