"""A reply in pieces: what is new of a request while it runs, sent as server-sent events.

Every event holds the text, ids and log-probs that are new since the one before, and version spans
of the whole reply (SGLang's --incremental-streaming-output); the last one ends it. A piece is due
after INTERVAL_TOKENS tokens or PIECE_S seconds, whichever is first: what a client has stored is
never further behind. Short replies would end before: there it is due as soon as the reply has grown
by a share worth its cost. Imported by `engine.app`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from engine.sequences import Sequence
from engine.thread import EngineFailed, EngineThread
from infra.policy.engines.reply_stream import INTERVAL_TOKENS

PIECE_S = 1.0
SOON_S = 0.05
SOON_SHARE = 1 / 8
"""Share of the reply so far. Otherwise a slow engine would send an event for each token."""
DONE = "data: [DONE]\n\n"

Answer = Callable[[Sequence, int], dict[str, Any]]
"""The answer of a request from a position on."""


def event(answer: dict[str, Any]) -> str:
    return f"data: {json.dumps(answer)}\n\n"


class Pieces:
    """The pieces of one request. `look` runs on the engine thread after each token."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        """None: the request is done."""
        self._num_told = 0
        self._told_at = time.monotonic()

    def look(self, sequence: Sequence) -> None:
        now, number = time.monotonic(), len(sequence.logprobs)
        if sequence.finish_reason is not None:
            return
        fresh, waited_s = number - self._num_told, now - self._told_at
        soon = waited_s >= SOON_S and fresh >= SOON_SHARE * number
        if fresh < INTERVAL_TOKENS and waited_s < PIECE_S and not soon:
            return
        piece = self._answer(sequence, self._num_told)
        self._num_told, self._told_at = number, now
        self._loop.call_soon_threadsafe(self._ready.put_nowait, piece)

    def _end(self, _: object) -> None:
        if not self._loop.is_closed():  # as when the server ends under its requests
            self._loop.call_soon_threadsafe(self._ready.put_nowait, None)

    async def events(self, engine: EngineThread, sequence: Sequence) -> AsyncIterator[str]:
        """Aborts the request when the client goes away."""
        sequence.done.add_done_callback(self._end)
        try:
            while (piece := await self._ready.get()) is not None:
                yield event(piece)
            try:
                sequence.done.result()
            except EngineFailed as failure:
                # Headers are sent already: only the end of the stream can tell.
                yield event({"error": {"message": failure.message}})
                return
            yield event(self._answer(sequence, self._num_told))
            yield DONE
        finally:
            if not sequence.done.done():
                engine.post(lambda s: s.abort(sequence.__eq__))
