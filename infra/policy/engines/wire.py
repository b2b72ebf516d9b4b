"""HTTP to one engine at a time: control calls, and replies whole or in pieces.

Owns the connections of a client. Invariant: what fails is typed by what may be done about it: ask
again (EngineUnreachable, EngineFailing), or not (EngineError). Used by the client beside this file.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import structlog

from infra.policy.protocol import MalformedReply
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 2.0
"""Below the 5 s after which SGLang closes an idle connection: a request must not meet that."""
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
_DATA = "data:"
_DONE = "[DONE]"
MIN_STREAM_INTERVAL = 8
"""Tokens from one event to the next below which a stream costs more than it saves: each event of
SGLang repeats the whole reply, and its default is an event for every token."""
OnPiece = Callable[[str, dict[str, Any]], None]
"""Takes what an engine has streamed so far."""
_log = structlog.get_logger(__name__)


class Closed(EngineUnreachable):
    """The connection closed under a request: the engine died, or was killed by it."""

    def __init__(self, message: str, so_far: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.so_far = so_far
        """The answer as far as the engine had streamed it."""


class NothingListens(EngineUnreachable):
    """No connection to the engine's address."""

    def __init__(self, message: str, *, has_ended: bool) -> None:
        super().__init__(message)
        self.has_ended = has_ended
        """Its host is there and refuses: the process has ended. Else the host or the network may
        come back with the process as it was."""


class Wire:
    def __init__(self, timeout_s: float, api_key: str) -> None:
        self._streams: dict[str, bool] = {}
        """Whether replies of an engine are taken in pieces."""
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
        self, engine: str, body: dict[str, Any], on_piece: OnPiece | None
    ) -> dict[str, Any]:
        if on_piece is None or not await self._streams_well(engine):
            return await self.post(engine, "/generate", body)
        last: dict[str, Any] | None = None
        where = f"{engine}/generate"
        try:
            async with self._http.stream("POST", where, json=body | {"stream": True}) as response:
                if response.status_code != 200:
                    await response.aread()
                    return _content(engine, "/generate", response)
                async for answer in _pieces(response):
                    if "error" in answer:
                        raise EngineFailing(f"{where}: {answer['error']}")
                    last = answer
                    if _has_ended(answer):
                        return answer
                    on_piece(engine, answer)
        except httpx.TransportError as error:
            raise _lost(where, error, last) from error
        except ValueError as error:
            raise MalformedReply(
                f"policy engine {where} did not stream JSON objects: {error}",
                remedy="is it SGLang 0.5.23 or later, or `mainspring serve`?",
            ) from error
        raise Closed(f"{where}: the stream ended before the reply did", last)

    async def _streams_well(self, engine: str) -> bool:
        """Asked once; again after it did not answer, as another process may be there."""
        if engine not in self._streams:
            try:
                info = await self.call(engine, "GET", "/server_info")
            except (EngineUnreachable, EngineFailing):
                return False  # for now: what became of the reply itself is what counts
            except EngineError:
                info = {}
            self._streams[engine] = _worth_streaming(info)
            if not self._streams[engine]:
                _log.info(
                    "replies are not stored in pieces: the engine streams too often or not at all",
                    engine=engine,
                    remedy="start SGLang with --stream-interval 32",
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
    said = f"{where}: {type(error).__name__} {error}"
    if isinstance(error, _NOT_CONNECTED):
        return NothingListens(said, has_ended=_is_refused(error))
    sent = not isinstance(error, httpx.TimeoutException)
    return Closed(said, so_far) if sent else EngineUnreachable(said)


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


async def _pieces(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The answers of a stream, the last one included. Raises ValueError for what is none; what
    httpx raises when the connection closes."""
    async for line in response.aiter_lines():
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            return
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError(f"an event that is no object: {data[:80]!r}")
        yield answer


def _has_ended(answer: dict[str, Any]) -> bool:
    """Whether it is the last piece."""
    meta = answer.get("meta_info")
    return isinstance(meta, dict) and bool(meta.get("finish_reason"))


def _worth_streaming(server_info: dict[str, Any]) -> bool:
    interval = server_info.get("stream_interval")
    return isinstance(interval, int) and interval >= MIN_STREAM_INTERVAL
