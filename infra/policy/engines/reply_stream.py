"""A reply as an engine streams it: what is new in each event, and the whole at its end. Pure.

An event holds either what is new since the one before (the CPU engine, vLLM, and SGLang with
--incremental-streaming-output: ids and log-probs; version spans are of the whole reply) or all of
the reply so far. Of the second kind most events are passed over unread, so that the cost of reading
is linear in the reply's length; the last one is always read. Imported by `wire`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

INTERVAL_TOKENS = 32
"""Tokens from one event to the next, of the engines that Mainspring starts."""
SHARE = 8
"""A death of the process costs at most one in SHARE tokens of a long reply."""

Json = dict[str, Any]


def is_due(num_new: float, num_in_all: float) -> bool:
    """Whether `num_new` tokens are to be taken now. Else a death before the next event could cost
    more than INTERVAL_TOKENS or the SHARE of the reply."""
    return SHARE * (num_new + INTERVAL_TOKENS) > num_in_all


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens new since the piece before."""

    start: int
    """Position of the first one among what this request generates."""
    answer: Json
    """In the engine's own shape, with these tokens alone; positions count from `start`."""


@dataclass(slots=True)
class ReplyStream:
    """Gives pieces that are worth storing: at most INTERVAL_TOKENS or a SHARE of the reply are not
    in a piece yet."""

    incremental: bool
    read: Callable[[Json], Json] = lambda event: event
    """Translates an event of the engine."""
    error: object = None
    """The engine's error, sent instead of a piece."""
    has_ended: bool = False
    _last: Json | None = None
    """The newest event that was read."""
    _unread: str = ""
    _ids: list[Any] = field(default_factory=list)
    _entries: list[Any] = field(default_factory=list)
    _num_chars: int = 0
    """Length of the newest event that was read."""
    _num_given: int = 0
    """Tokens that are in pieces."""
    _num_confirmed: int = 0
    """Tokens that are in pieces whose version was confirmed."""

    def take(self, data: str) -> Piece | None:
        """One event; None: no piece is due, or it ends the reply. Raises ValueError for what is no
        JSON object, or not of a reply's shape."""
        if not self.incremental and self._can_wait(data):
            self._unread = data
            return None
        return self._read(data)

    def close(self) -> None:
        """Read what was passed over: no event comes any more. Raises as `take`."""
        if self._unread:
            self._read(self._unread)

    def whole(self) -> Json | None:
        """The reply as far as it came, in the shape of an answer that was not streamed; None:
        nothing came."""
        if self._last is None:
            return None
        if not self.incremental:
            return self._last
        meta = self._last["meta_info"] | {"output_token_logprobs": self._entries}
        return self._last | {"output_ids": self._ids, "meta_info": meta}

    def confirm(self, piece: Piece) -> None:
        """The newest piece is under the version that it tells, as those before it."""
        self._num_confirmed = piece.start + len(piece.answer["output_ids"])

    def confirmed(self) -> Json | None:
        """The reply as far as it was confirmed, in the shape of `whole`; None: nothing was."""
        end = self._num_confirmed
        if self._last is None or not end:
            return None
        meta = self._last["meta_info"]
        spans = [
            span | {"end": min(span["end"], end)}
            for span in meta["weight_versions"]
            if span["start"] < end
        ]
        new = {"output_token_logprobs": self._entries[:end], "weight_versions": spans}
        return self._last | {"output_ids": self._ids[:end], "meta_info": meta | new}

    def _can_wait(self, data: str) -> bool:
        if not self._ids or len(data) < self._num_chars:  # the first, or an error
            return False
        num_in_all = len(data) * len(self._ids) / self._num_chars
        return not is_due(num_in_all - self._num_given, num_in_all)

    def _read(self, data: str) -> Piece | None:
        self._unread = ""
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event that is no object: {data[:80]!r}")
        if "error" in event:
            self.error = event["error"]
            return None
        try:
            event = self.read(event)
            meta: Json = event["meta_info"]
            ids, entries = event["output_ids"], meta["output_token_logprobs"]
            skipped = 0 if self.incremental else len(self._ids)
            self._ids += ids[skipped:]
            self._entries += entries[skipped:]
            self._last, self._num_chars = event, len(data)
            self.has_ended = bool(meta.get("finish_reason"))
            start, end = self._num_given, len(self._ids)
            if self.has_ended or start == end or not is_due(end - start, end):
                return None
            self._num_given = end
            return Piece(start, self._from(start))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"an event of another shape: {error!r}") from error

    def _from(self, start: int) -> Json:
        """The newest event with the tokens from `start` on."""
        assert self._last is not None
        meta = self._last["meta_info"]
        spans = [_cut(span, start) for span in meta["weight_versions"] if span["end"] > start]
        new = {"output_token_logprobs": self._entries[start:], "weight_versions": spans}
        return self._last | {"output_ids": self._ids[start:], "meta_info": meta | new}


def _cut(span: Json, start: int) -> Json:
    return span | {"start": max(span["start"] - start, 0), "end": span["end"] - start}
