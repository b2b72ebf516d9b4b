"""A server at a sandbox's loopback, held by this process outside, and bytes carried both ways.

Invariants: at most `max_connections` of a sandbox are accepted at once, more wait in the kernel, so
that no sandbox fills this process's memory or descriptors; whatever a connection does ends that
connection alone; `close` and `cut` leave none open. Imported by `egress` and `model_port`.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger()

PIECE_BYTES = 64 << 10
LINGER_S = 10.0
"""For the rest of an answer to reach a client that reads slowly, and for it to hang up."""
ACCEPT_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class LoopbackServer:
    """`handle` is called for each connection, which is closed when it returns or raises OSError."""

    def __init__(
        self,
        handle: Callable[[Stream], Awaitable[None]],
        max_connections: int,
        head_bytes: int = PIECE_BYTES,
    ) -> None:
        self._handle = handle
        self._head_bytes = head_bytes
        self._turns = asyncio.Semaphore(max_connections)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def serve(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    async def cut(self) -> None:
        """End all connections; new ones are accepted."""
        connections = [*self._connections]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        await self.cut()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._turns.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:  # the client hung up, or this process is out of descriptors
                self._turns.release()
                log.info("a sandbox's connection was not accepted", reason=str(error))
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            connection = asyncio.create_task(self._serve_one(accepted))
            self._connections.add(connection)
            connection.add_done_callback(self._ended)

    def _ended(self, connection: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        self._turns.release()
        if not connection.cancelled() and (error := connection.exception()) is not None:
            log.error("a sandbox's connection broke", exc_info=error)

    async def _serve_one(self, accepted: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=accepted, limit=self._head_bytes)
        except BaseException:
            accepted.close()
            raise
        try:
            await self._handle(Stream(reader, writer))
            writer.close()
            async with asyncio.timeout(LINGER_S):
                await writer.wait_closed()
        except* (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # one side went away, or never said what it wants: the other is cut too
        finally:
            writer.transport.abort()


async def splice(near: Stream, far: Stream, idle_s: float | None = None) -> None:
    """Carry bytes both ways until both sides are done, `far` has been done for LINGER_S, or nothing
    was said for `idle_s`. Raises OSError, in a group too; closes neither."""
    loop = asyncio.get_running_loop()
    is_over = False

    async def carry(source: Stream, target: Stream) -> None:
        nonlocal is_over
        while piece := await source.reader.read(PIECE_BYTES):
            if idle_s is not None and not is_over:
                bound.reschedule(loop.time() + idle_s)
            target.writer.write(piece)
            await target.writer.drain()
        if target.writer.can_write_eof():
            target.writer.write_eof()
        if source is far:
            is_over = True
            bound.reschedule(loop.time() + LINGER_S)

    async with asyncio.timeout(idle_s) as bound, asyncio.TaskGroup() as both:
        both.create_task(carry(near, far))
        both.create_task(carry(far, near))
