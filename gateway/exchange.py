"""One model request: from the parsed body to the answer's last byte.

Invariants: nothing of an answer is written before it is stored; while it is awaited a stream gets
what its dialect has for that and everything else gets silence; it is noted as delivered only when
the client has it whole; a client that leaves ends the wait, not the sampling; what goes wrong is
told in the client's dialect without a detail of this machine. Imported by the application.
"""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.channel import Channel
from gateway.dialects import gemini
from gateway.dialects.protocol import DialectWire, ParsedRequest, Problem
from gateway.protocol import Answers, Session
from gateway.refusals import problem_of, refuse
from gateway.settling import Settling
from mainspring.programs.reply import Answer

T = TypeVar("T")

KEEP_ALIVE_S = 15.0
"""Between two comments; proxies close connections that are silent for 30 s and more."""
_EVENTS = "text/event-stream; charset=utf-8"
_STREAM_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))


class Exchange:
    """For all requests of one application."""

    def __init__(self, answers: Answers, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._answers = answers
        self._keep_alive_s = keep_alive_s
        self._settling = Settling()

    async def answer(
        self,
        channel: Channel,
        session: Session,
        wire: DialectWire,
        parsed: ParsedRequest,
        *,
        is_array: bool = False,
    ) -> None:
        """`is_array`: the stream is one JSON list, as Gemini's without `alt=sse`."""
        asking = asyncio.create_task(self._ask(channel, session, parsed))
        try:
            if parsed.streams and not is_array:
                await self._stream(channel, session, wire, parsed, asking)
            elif await channel.wait(asking):
                await self._tell_whole(channel, session, wire, parsed, asking, is_array=is_array)
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})

    async def call(
        self, channel: Channel, session: Session, work: Coroutine[Any, Any, T]
    ) -> T | Problem | None:
        """The result of `work`, what is wrong, or None: the client is gone."""
        task = asyncio.create_task(work)
        try:
            return await _outcome(task, session) if await channel.wait(task) else None
        finally:
            task.cancel()

    async def _ask(self, channel: Channel, session: Session, parsed: ParsedRequest) -> Answer:
        await self._settling.wait(session)
        is_retry = channel.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        return await self._answers.ask(session, parsed.request, is_retry=is_retry)

    async def _tell_whole(
        self,
        channel: Channel,
        session: Session,
        wire: DialectWire,
        parsed: ParsedRequest,
        asking: asyncio.Task[Answer],
        *,
        is_array: bool,
    ) -> None:
        answer = await _outcome(asking, session)
        if isinstance(answer, Problem):
            await refuse(channel, wire, answer)
            return
        if is_array:
            text = gemini.as_array(wire.events(parsed, answer))
        else:
            text = json.dumps(wire.body(parsed, answer))
        await channel.begin(200, "application/json", num_bytes=len(text))
        await self._deliver(channel, session, answer, [text[:-1], text[-1:]])

    async def _stream(
        self,
        channel: Channel,
        session: Session,
        wire: DialectWire,
        parsed: ParsedRequest,
        asking: asyncio.Task[Answer],
    ) -> None:
        has_begun = False
        while True:
            if not await channel.wait(asking, self._keep_alive_s):
                return
            if asking.done():
                break
            if not has_begun:
                has_begun = True
                await channel.begin(200, _EVENTS, _STREAM_HEADERS)
            await channel.write(wire.waiting)
        answer = await _outcome(asking, session)
        if isinstance(answer, Problem) and not has_begun and not wire.tells_in_stream(answer):
            await refuse(channel, wire, answer)
            return
        if isinstance(answer, Problem):
            pieces = [wire.error_event(answer)]
        else:
            pieces = wire.events(parsed, answer)
        if not has_begun:
            await channel.begin(200, _EVENTS, _STREAM_HEADERS)
        if isinstance(answer, Problem):
            await channel.finish(pieces, lambda: None)
        else:
            await self._deliver(channel, session, answer, pieces)

    async def _deliver(
        self, channel: Channel, session: Session, answer: Answer, pieces: list[str]
    ) -> None:
        with self._settling.answer(session) as ending:
            if not await channel.finish(pieces, ending.begin):
                return
            try:
                await self._answers.delivered(session, answer.number)
            except Exception as error:
                problem_of(error, session)  # for the log; asked again, it is told again


async def _outcome(task: asyncio.Task[T], session: Session) -> T | Problem:
    try:
        return await task
    except Exception as error:
        return problem_of(error, session)
