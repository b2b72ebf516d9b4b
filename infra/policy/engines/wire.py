"""HTTP to one engine at a time: control calls, and replies whole or in pieces.

Owns the connections of a client. Invariant: what fails is typed by what may be done about it: ask
again (EngineUnreachable, EngineFailing), or not (EngineError). Used by the client beside this file.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from enum import Enum, auto
from typing import Any

import httpx
import structlog

from infra.policy.engines.reply_stream import INTERVAL_TOKENS, Piece, ReplyStream
from infra.policy.protocol import MalformedReply
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable

CONNECT_TIMEOUT_S = 5.0
END_S = 1.0
"""From the last event of a reply to the end of its stream."""
KEEPALIVE_S = 2.0
"""Below the 5 s after which SGLang closes an idle connection: a request must not meet that."""
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
_DATA = "data:"
_DONE = "[DONE]"
MIN_STREAM_INTERVAL = 8
"""Tokens from one event to the next below which a stream costs more than it saves: each event of
SGLang repeats the whole reply, and its default is an event for every token."""
OnPiece = Callable[[str, Piece], None]
"""Takes what is new in a stream, and the engine that it is from."""
_log = structlog.get_logger(__name__)


class _Streaming(Enum):
    NONE = auto()
    """Replies come whole."""
    CUMULATIVE = auto()
    """Each event repeats the reply so far."""
    INCREMENTAL = auto()
    """Each event holds what is new."""


class Closed(EngineUnreachable):
    """The connection closed under a request: the engine died, or was killed by it."""

    def __init__(self, message: str, so_far: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.so_far = so_far
        """The answer as far as the engine had streamed it."""


class GivenUp(Closed):
    """An engine stood still under a request, and another one can continue the reply."""


class NothingListens(EngineUnreachable):
    """No connection to the engine's address."""

    def __init__(self, message: str, *, has_ended: bool) -> None:
        super().__init__(message)
        self.has_ended = has_ended
        """Its host is there and refuses: the process has ended. Else the host or the network may
        come back with the process as it was."""


class Wire:
    def __init__(self, timeout_s: float, api_key: str) -> None:
        self._streams: dict[str, _Streaming] = {}
        """How replies of an engine are taken."""
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=256,
                keepalive_expiry=KEEPALIVE_S,
            ),
            trust_env=False,  # engines are inside the cluster: never through a proxy
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    def forget(self, engine: str) -> None:
        """It did not answer: another process may be there the next time."""
        self._streams.pop(engine, None)

    async def answers(self, engine: str) -> bool:
        """For the pulse: any answer proves that the engine runs, an error as well."""
        try:
            await self._http.get(f"{engine}/model_info")
        except httpx.TransportError:
            return False
        return True

    async def post(self, engine: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.call(engine, "POST", path, body)

    async def reply(
        self,
        engine: str,
        body: dict[str, Any],
        on_piece: OnPiece | None,
        limit: asyncio.Timeout | None = None,
    ) -> dict[str, Any]:
        """`limit`: after which it is GivenUp."""
        kind = _Streaming.NONE if on_piece is None else await self._streaming(engine)
        stream = ReplyStream(incremental=kind is _Streaming.INCREMENTAL)
        try:
            async with limit or nullcontext():
                if on_piece is None or kind is _Streaming.NONE:
                    return await self.post(engine, "/generate", body)
                return await self._streamed(engine, body, on_piece, stream)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            where = f"{engine}/generate"
            raise GivenUp(f"{where}: the engine stands still", _so_far(stream)) from None

    async def _streamed(
        self, engine: str, body: dict[str, Any], on_piece: OnPiece, stream: ReplyStream
    ) -> dict[str, Any]:
        where = f"{engine}/generate"
        try:
            async with self._http.stream("POST", where, json=body | {"stream": True}) as response:
                if response.status_code != 200:
                    await response.aread()
                    return _content(engine, "/generate", response)
                events = _events(response)
                async for data in events:
                    piece = stream.take(data)
                    if stream.error is not None:
                        raise EngineFailing(f"{where}: {stream.error}")
                    if piece is not None:
                        on_piece(engine, piece)
                    if stream.has_ended:
                        await _to_the_end(events)
                stream.close()
        except httpx.TransportError as error:
            so_far = _so_far(stream)
            if not stream.has_ended:
                raise _lost(where, error, so_far) from error
        except ValueError as error:
            raise MalformedReply(
                f"policy engine {where} did not stream pieces of a reply: {error}",
                remedy="is it SGLang 0.5.23 or later, or `mainspring serve`?",
            ) from error
        answer = stream.whole()
        if answer is None or not stream.has_ended:
            raise Closed(f"{where}: the stream ended before the reply did", answer)
        return answer

    async def _streaming(self, engine: str) -> "_Streaming":
        """Asked once; again after it did not answer, as another process may be there."""
        if engine not in self._streams:
            try:
                info = await self.call(engine, "GET", "/server_info")
            except (EngineUnreachable, EngineFailing):
                return _Streaming.NONE  # for now: what became of the reply itself is what counts
            except EngineError:
                info = {}
            self._streams[engine] = _streaming_of(info)
            if self._streams[engine] is _Streaming.NONE:
                _log.info(
                    "replies are not stored in pieces: the engine streams too often or not at all",
                    engine=engine,
                    remedy=f"start SGLang with --stream-interval {INTERVAL_TOKENS}",
                )
        return self._streams[engine]

    async def call(
        self, engine: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Raises what `_content` raises, EngineUnreachable, or Closed."""
        try:
            response = await self._http.request(method, engine + path, json=body)
        except httpx.TransportError as error:
            raise _lost(engine + path, error) from error
        return _content(engine, path, response)


def _lost(
    where: str, error: httpx.TransportError, so_far: dict[str, Any] | None = None
) -> EngineUnreachable:
    message = f"{where}: {type(error).__name__} {error}"
    if isinstance(error, _NOT_CONNECTED):
        return NothingListens(message, has_ended=_is_refused(error))
    is_sent = not isinstance(error, httpx.TimeoutException)
    return Closed(message, so_far) if is_sent else EngineUnreachable(message)


def _is_refused(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _content(engine: str, path: str, response: httpx.Response) -> dict[str, Any]:
    """Raises EngineUnreachable or EngineFailing when asking again (or elsewhere) may help, else
    EngineError."""
    if response.status_code == 500:
        raise EngineFailing(f"{engine}{path}: HTTP 500 {response.text}")
    if response.status_code == 429 or response.status_code > 500:
        raise EngineUnreachable(f"{engine}{path}: HTTP {response.status_code} {response.text}")
    if response.status_code == 401:
        raise EngineError(
            f"policy engine {engine} refuses the API key",
            remedy="put the key it was started with (--api-key) into MAINSPRING_POLICY_API_KEY",
        )
    if response.status_code != 200:
        raise EngineError(
            f"policy engine {engine}{path} answered {response.status_code}: {response.text}"
        )
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise MalformedReply(
            f"policy engine {engine}{path} did not answer with JSON: {response.text[:200]!r}",
            remedy="is it SGLang 0.5.23 or later, or `mainspring serve`?",
        )
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Contents of a stream's events, the last one included. Raises what httpx raises when the
    connection closes."""
    async for line in response.aiter_lines():
        if line.startswith(_DATA) and (data := line.removeprefix(_DATA).strip()) != _DONE:
            yield data


async def _to_the_end(events: AsyncIterator[str]) -> None:
    """Read a stream that has told all to its end: then its connection serves the next request."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            async for _ in events:
                pass


def _so_far(stream: ReplyStream) -> dict[str, Any] | None:
    """The reply up to where the connection closed; the last event may have been cut."""
    with suppress(ValueError):
        stream.close()
    return stream.whole()


def _streaming_of(server_info: dict[str, Any]) -> "_Streaming":
    interval = server_info.get("stream_interval")
    if server_info.get("incremental_streaming_output") is True:
        return _Streaming.INCREMENTAL
    if isinstance(interval, int) and interval >= MIN_STREAM_INTERVAL:
        return _Streaming.CUMULATIVE
    return _Streaming.NONE
