"""A reply as an engine streams it: what is new in each event, and the whole at its end. Pure.

An event holds either what is new since the one before (the CPU engine, and SGLang with
--incremental-streaming-output: ids and log-probs; version spans are of the whole reply) or all of
the reply so far. Of the second kind most events are passed over unread, so that the cost of reading
is linear in the reply's length; the last one is always read. Imported by `wire`.
"""

import json
from dataclasses import dataclass, field
from typing import Any

INTERVAL_TOKENS = 32
"""Tokens from one event to the next, of the engines that Mainspring starts."""
SHARE = 8
"""At most one in so many tokens of a long reply is lost where its process dies."""

Json = dict[str, Any]


def is_due(num_new: float, num_in_all: float) -> bool:
    """Whether so many tokens are to be taken now. Else a death before the next event could cost
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
    incremental: bool
    error: object = None
    """What the engine sent instead of a piece."""
    has_ended: bool = False
    _last: Json | None = None
    """The newest event that was read."""
    _unread: str = ""
    _ids: list[Any] = field(default_factory=list)
    _entries: list[Any] = field(default_factory=list)
    _num_chars: int = 0
    """Length of the newest event that was read."""

    def take(self, data: str) -> Piece | None:
        """One event; None: it is not read yet, or it ends the reply. Raises ValueError for what is
        no JSON object, or not of a reply's shape."""
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

    def _can_wait(self, data: str) -> bool:
        if not self._ids or len(data) < self._num_chars:  # the first, or an error
            return False
        chars_per_token = self._num_chars / len(self._ids)
        # The length tells roughly: what is read here is enough for the store as well.
        num_new = 0.95 * (len(data) - self._num_chars) / chars_per_token
        return not is_due(num_new, len(data) / chars_per_token)

    def _read(self, data: str) -> Piece | None:
        self._unread = ""
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event that is no object: {data[:80]!r}")
        if "error" in event:
            self.error = event["error"]
            return None
        try:
            meta: Json = event["meta_info"]
            ids, entries = event["output_ids"], meta["output_token_logprobs"]
            start = len(self._ids)
            if not self.incremental:
                ids, entries = ids[start:], entries[start:]
            self._ids += ids
            self._entries += entries
            spans = [_cut(span, start) for span in meta["weight_versions"] if span["end"] > start]
        except (KeyError, TypeError) as error:
            raise ValueError(f"an event of another shape: {error!r}") from error
        self._last, self._num_chars = event, len(data)
        self.has_ended = bool(meta.get("finish_reason"))
        if self.has_ended or not ids:
            return None
        new = {"output_token_logprobs": entries, "weight_versions": spans}
        return Piece(start, event | {"output_ids": ids, "meta_info": meta | new})


def _cut(span: Json, start: int) -> Json:
    return span | {"start": max(span["start"] - start, 0), "end": span["end"] - start}
