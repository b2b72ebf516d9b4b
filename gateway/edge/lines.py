"""The lines that gateways hold to an edge: which one a request gets, and which are alive.

Invariants: a line carries one request at a time; a request waits in turn for a line, and gets one
of the gateway with the fewest requests, if it can be not of one that it lost before; a line that
ended is not given out; one gateway has at most MAX_LINES, and an edge MAX_GATEWAYS of them.
Imported by the edge's application and its connections.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

import structlog

from gateway.edge.line import Forwarded, Line, LineLost
from gateway.edge.wire import MAX_LINES, PING_EVERY_S, PING_HEADER

MAX_GATEWAYS = 64
PING_TIMEOUT_S = 30.0
"""A gateway that does not answer for so long is stopped or stuck, whatever its kernel answers."""
_LOOK_EVERY_S = 1.0
_PING = Forwarded(b"HEAD", b"/", [(b"host", b"edge"), (PING_HEADER, b"1")], b"")

log = structlog.get_logger()


class Lines:
    def __init__(self) -> None:
        self._all: dict[str, set[Line]] = {}
        self._idle: dict[str, list[Line]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pings: set[asyncio.Task[None]] = set()

    @property
    def num_gateways(self) -> int:
        return len(self._all)

    def may_add(self, gateway: str) -> bool:
        if gateway in self._all:
            return len(self._all[gateway]) < MAX_LINES
        return len(self._all) < MAX_GATEWAYS

    def add(self, gateway: str, transport: asyncio.Transport) -> None:
        if gateway not in self._all:
            log.info("a gateway connected", gateway=gateway, gateways=len(self._all) + 1)
        line = Line(gateway, transport, self._ended)
        self._all.setdefault(gateway, set()).add(line)
        self._idle.setdefault(gateway, []).append(line)
        self._wake()

    async def take(self, avoid: Iterable[str] = ()) -> Line:
        """As soon as one is idle; `avoid`: gateways to ask last."""
        is_first = not self._waiting
        while not is_first or (line := self._pick(frozenset(avoid))) is None:
            is_first = True
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn is another one's
                    self._wake()
                raise
        return line

    def give_back(self, line: Line) -> None:
        """After an answer; one that cannot be used again is closed."""
        if line.is_ready():
            self._idle.setdefault(line.gateway, []).append(line)
            self._wake()
        else:
            line.close()

    async def tend_forever(self) -> None:
        """Ask idle lines whether they are alive."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            before = asyncio.get_running_loop().time() - PING_EVERY_S
            silent = [
                line for idle in self._idle.values() for line in idle if line.idle_since <= before
            ]
            for line in silent:
                self._idle[line.gateway].remove(line)
            for line in silent:
                ping = asyncio.create_task(self._ping(line))
                self._pings.add(ping)
                ping.add_done_callback(self._pings.discard)

    def every(self) -> set[Line]:
        return {line for lines in self._all.values() for line in lines}

    def close(self) -> None:
        for ping in self._pings:
            ping.cancel()
        for line in self.every():
            line.close()

    async def _ping(self, line: Line) -> None:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await line.ask(_PING)
                async for _ in line.pieces():
                    pass
        except LineLost:
            return
        except TimeoutError:
            log.warning("a gateway answers no more", gateway=line.gateway)
            for other_line in list(self._all.get(line.gateway, ())):
                other_line.close()  # what waits there is given to others
        else:
            self.give_back(line)

    def _pick(self, avoid: frozenset[str]) -> Line | None:
        with_idle = [gateway for gateway, idle in self._idle.items() if idle]
        if not with_idle:
            return None
        best = min(with_idle, key=lambda gateway: (gateway in avoid, self._num_busy(gateway)))
        return self._idle[best].pop()

    def _num_busy(self, gateway: str) -> int:
        return len(self._all[gateway]) - len(self._idle[gateway])

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _ended(self, line: Line) -> None:
        idle, lines = self._idle[line.gateway], self._all[line.gateway]
        if line in idle:
            idle.remove(line)
        lines.discard(line)
        if not lines:
            del self._all[line.gateway], self._idle[line.gateway]
            log.warning("a gateway left", gateway=line.gateway, gateways=len(self._all))
