"""HTTP to one engine at a time: control calls, and replies whole or in pieces.

Owns the connections of a client. Invariant: what fails is typed by what may be done about it: ask
again (EngineUnreachable, EngineFailing), or not (EngineError). Used by the client beside this file.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import httpx

from infra.policy.engines.dialects.protocol import EngineDialect, EngineRequest, Json, Streaming
from infra.policy.engines.reply_stream import Piece, ReplyStream
from infra.policy.protocol import MalformedReply
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable

CONNECT_TIMEOUT_S = 5.0
END_S = 1.0
"""From the last event of a reply to the end of its stream."""
KEEPALIVE_S = 2.0
"""Below the 5 s after which SGLang closes an idle connection: a request must not meet that."""
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
OTHER_KIND = "is it SGLang 0.5.23 or later, or `mainspring serve`, or what policy.api names?"
_MISREAD = (ValueError, KeyError, TypeError, IndexError)
_DATA = "data:"
_DONE = "[DONE]"
OnPiece = Callable[[str, Piece], None]
"""Takes what is new in a stream, and the engine that it is from."""


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
    def __init__(self, timeout_s: float, api_key: str, dialect: EngineDialect) -> None:
        self.dialect: EngineDialect = dialect
        self._facts: dict[tuple[str, str], Any] = {}
        """By engine and name."""
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
        for key in [key for key in self._facts if key[0] == engine]:
            del self._facts[key]

    async def fact(self, engine: str, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """See Calls."""
        if (engine, name) not in self._facts:
            self._facts[engine, name] = await ask()
        return self._facts[engine, name]

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
        body: Json,
        on_piece: OnPiece | None,
        limit: asyncio.Timeout | None = None,
    ) -> dict[str, Any]:
        """The answer to `body`, in the common language, as the engine was spoken to in its own.
        `limit`: after which it is GivenUp."""
        try:
            asked = await self.dialect.ask(self, engine, body, streams=on_piece is not None)
        except Closed as error:  # under another question than the one that is counted
            raise EngineUnreachable(error.message) from error
        incremental = asked.streaming is Streaming.INCREMENTAL
        stream = ReplyStream(incremental=incremental, read=asked.read)
        where = engine + asked.path
        try:
            async with limit or nullcontext():
                if on_piece is None or asked.streaming is Streaming.NONE:
                    return _read(where, asked, await self.post(engine, asked.path, asked.body))
                return await self._stream(engine, asked, on_piece, stream)
        except TimeoutError:
            if limit is None or not limit.expired():
                raise
            so_far = _so_far(stream, asked)
            raise GivenUp(f"{where}: the engine stands still", so_far) from None

    async def _stream(
        self, engine: str, asked: EngineRequest, on_piece: OnPiece, stream: ReplyStream
    ) -> dict[str, Any]:
        where = engine + asked.path
        try:
            async with self._http.stream("POST", where, json=asked.body) as response:
                if response.status_code != 200:
                    await response.aread()
                    return _read(where, asked, _content(engine, asked.path, response))
                events = _events(response)
                async for data in events:
                    piece = stream.take(data)
                    if stream.error is not None:
                        raise EngineFailing(f"{where}: {stream.error}")
                    if piece is not None and await asked.stands():
                        stream.confirm(piece)
                        on_piece(engine, piece)
                    if stream.has_ended:
                        await _to_the_end(events)
                stream.close()
        except httpx.TransportError as error:
            so_far = _so_far(stream, asked)
            if not stream.has_ended:
                raise _lost(where, error, so_far) from error
        except _MISREAD as error:
            raise MalformedReply(
                f"policy engine {where} did not stream pieces of a reply: {error}",
                remedy=OTHER_KIND,
            ) from error
        answer = stream.whole()
        if answer is None or not stream.has_ended:
            raise Closed(f"{where}: the stream ended before the reply did", _so_far(stream, asked))
        return answer

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
            remedy=OTHER_KIND,
        )
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Contents of a stream's events, the last one included. Raises what httpx raises when the
    connection closes."""
    async for line in _lines(response):
        if line.startswith(_DATA) and (data := line.removeprefix(_DATA).strip()) != _DONE:
            yield data


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of an event stream, which end with LF or CR LF; one that was cut off is none. httpx's
    own also end at each line break of Unicode, and SGLang sends those of a reply as they are."""
    begun: list[bytes] = []
    async for chunk in response.aiter_bytes():
        first, *others = chunk.split(b"\n")
        begun.append(first)
        for other in others:
            yield b"".join(begun).decode(errors="replace").removesuffix("\r")
            begun = [other]


async def _to_the_end(events: AsyncIterator[str]) -> None:
    """Read a stream that has told all to its end: then its connection serves the next request."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            async for _ in events:
                pass


def _so_far(stream: ReplyStream, asked: EngineRequest) -> dict[str, Any] | None:
    """The reply up to where the connection closed; the last event may have been cut."""
    if not asked.tells_versions:
        return stream.confirmed()
    with suppress(ValueError):
        stream.close()
    return stream.whole()


def _read(where: str, asked: EngineRequest, answer: Json) -> dict[str, Any]:
    try:
        return asked.read(answer)
    except _MISREAD as error:
        raise MalformedReply(
            f"policy engine {where} sent an answer of another shape: {error!r}", remedy=OTHER_KIND
        ) from error
