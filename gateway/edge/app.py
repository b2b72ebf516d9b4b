"""The edge's application: each request of a client is handed to a gateway, its answer passed on.

Invariants: the edge parses no body and knows no key; a request that its gateway lost before the
answer began is handed to another one, which is safe on every route: model requests are rows that
two gateways share (and are marked as sent again), results that are handed in stand once, and a
claim without an Idempotency-Key gets one here; once the answer has begun it is cut, and the client
asks again; what is held in memory is bounded; a client that leaves ends its request at the gateway.
"""

import asyncio
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass

import structlog
from starlette.types import ASGIApp

from gateway.channel import Channel, ClientGone
from gateway.dialects.protocol import STATUSES, Problem, ProblemKind
from gateway.edge.held import Held, Unanswered
from gateway.edge.line import Forwarded, Head, Line, LineLost
from gateway.edge.lines import Lines
from gateway.edge.wire import CLIENT_HEADER, ORIGIN_HEADER, RETRY_HEADER, Headers, end_to_end
from gateway.endpoint import Endpoint, refuse_in_dialect

NO_GATEWAY_S = 25.0
"""A request waits so long in silence for a gateway; proxies close what is silent for 30 s."""
MAX_LOST_GATEWAYS = 3
"""A request that has ended three gateways is not given to a fourth."""
MAX_LOST_LINES = 20
MAX_WHOLE_BYTES = 256 * 1024
"""An answer of known length up to this is read whole before its client gets its first byte."""
WRITE_TIMEOUT_S = 120.0
"""A client that takes nothing of its answer for so long is cut."""
RETRY_S = 5
log = structlog.get_logger()
_NONE_CONNECTED = Problem(
    ProblemKind.UNAVAILABLE, "no gateway is connected for the moment: ask again"
)
_ALL_BUSY = Problem(ProblemKind.UNAVAILABLE, "all gateways are busy for the moment: ask again")
_LOST = Problem(
    ProblemKind.UNAVAILABLE, "the gateways that had this request ended before they answered it"
)


def make_edge(lines: Lines, *, public_url: str = "", no_gateway_s: float = NO_GATEWAY_S) -> ASGIApp:
    """`public_url`: where clients reach this edge, if not as their requests tell."""
    return Endpoint(_Edge(lines, public_url, no_gateway_s).answer, _refuse)


class _Edge:
    def __init__(self, lines: Lines, public_url: str, no_gateway_s: float) -> None:
        self._lines = lines
        self._public_url = public_url.encode()
        self._no_gateway_s = no_gateway_s
        self._held = Held()

    async def answer(self, channel: Channel) -> None:
        try:
            with self._held.body() as holding:
                request = self._forwarded(channel, await channel.read_body(holding.add))
                answer = await _while_there(channel, self._asked(request))
        except Unanswered as error:
            await _refuse(channel, error.problem)
            return
        try:
            await _pass_on(channel, answer)
        except BaseException:
            answer.line.close()
            raise
        self._lines.give_back(answer.line)

    async def _asked(self, request: Forwarded) -> "_Begun":
        """Raises Unanswered."""
        lost: set[str] = set()
        for _ in range(MAX_LOST_LINES):
            line = await self._line(lost)
            try:
                head = await line.ask(request)
                return _Begun(line, head, await _whole(line, head))
            except LineLost:
                lost.add(line.gateway)
                request = _sent_again(request)
            except BaseException:
                line.close()
                raise
            if len(lost) >= MAX_LOST_GATEWAYS:
                break
        raise Unanswered(_LOST)

    async def _line(self, lost: set[str]) -> Line:
        try:
            async with asyncio.timeout(self._no_gateway_s):
                return await self._lines.take(lost)
        except TimeoutError:
            raise Unanswered(_ALL_BUSY if self._lines.num_gateways else _NONE_CONNECTED) from None

    def _forwarded(self, channel: Channel, body: bytes) -> Forwarded:
        scope = channel.scope
        headers = [
            pair for pair in end_to_end(scope["headers"]) if pair[0].lower() != b"content-length"
        ]
        scheme, host = scope["scheme"].encode(), channel.headers.get("host", "").encode()
        address = scope["client"][0] if scope["client"] else ""
        headers.append((CLIENT_HEADER, address.encode()))
        headers.append((ORIGIN_HEADER, self._public_url or scheme + b"://" + host))
        if scope["path"] == "/sessions" and "idempotency-key" not in channel.headers:
            headers.append((b"idempotency-key", secrets.token_hex(16).encode()))
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        return Forwarded(channel.method.encode(), target, headers, body)


@dataclass(frozen=True, slots=True)
class _Begun:
    line: Line
    head: Head
    body: bytes | None
    """None: it is passed on as it comes."""


async def _whole(line: Line, head: Head) -> bytes | None:
    """A short answer, before its client gets any of it: so it cannot be cut. Raises LineLost."""
    lengths = [int(value) for name, value in head.headers if name.lower() == b"content-length"]
    if not lengths or lengths[0] > MAX_WHOLE_BYTES:
        return None
    return b"".join([piece async for piece in line.pieces()])


def _sent_again(request: Forwarded) -> Forwarded:
    """So that a gateway takes it for the same request, also where the former one had answered."""
    headers: Headers = [pair for pair in request.headers if pair[0].lower() != RETRY_HEADER]
    headers.append((RETRY_HEADER, b"1"))
    return Forwarded(request.method, request.target, headers, request.body)


async def _while_there(channel: Channel, work: Awaitable[_Begun]) -> _Begun:
    """Raises ClientGone, when the gateway no longer needs to answer."""
    asking = asyncio.ensure_future(work)
    try:
        if await channel.wait(asking):
            return await asking
        raise ClientGone
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})


async def _pass_on(channel: Channel, answer: _Begun) -> None:
    await channel.begin_as(answer.head.status, end_to_end(answer.head.headers))
    if answer.body is not None:
        await _write(channel, answer.body, is_last=True)
        return
    pieces = answer.line.pieces()
    while True:
        next_piece = asyncio.ensure_future(anext(pieces, None))
        try:
            if not await channel.wait(next_piece):
                raise ClientGone
            piece = next_piece.result()
        except LineLost as lost:
            # Nothing may follow: the client must see that its answer is not whole.
            log.warning("an answer was cut", cause=lost.message)
            raise ClientGone from lost
        finally:
            next_piece.cancel()
        await _write(channel, piece or b"", is_last=piece is None)
        if piece is None:
            return


async def _write(channel: Channel, data: bytes, *, is_last: bool) -> None:
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await channel.write_bytes(data, is_last=is_last)
    except TimeoutError:
        raise ClientGone from None


async def _refuse(channel: Channel, problem: Problem) -> None:
    if not channel.scope["path"].startswith("/sessions"):
        await refuse_in_dialect(channel, problem)
        return
    is_away = problem.kind is ProblemKind.UNAVAILABLE
    error = {
        "kind": problem.kind.value,
        "message": problem.message,
        "remedy": "ask again, with the same Idempotency-Key" if is_away else "see docs/gateway.md",
    }
    headers = [("retry-after", str(RETRY_S))] if is_away else []
    await channel.respond(STATUSES[problem.kind], {"error": error}, headers)
