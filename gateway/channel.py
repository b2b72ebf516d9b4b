"""One HTTP request of a client, from its body to the last byte of the answer.

Owns reading within bounds and writing in order; knows no dialect. Invariant: `finish` is true only
when every byte before the end of the answer was accepted by the connection and the client was still
there. Imported by the gateway's application.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_DISCARDED_BYTES = 4 * MAX_BODY_BYTES
"""Bytes read of a body that is refused: a client that is cut while it sends does not read why."""
BODY_TIMEOUT_S = 120.0
"""For a whole body; 32 MiB take 27 s at 10 Mbit/s."""


class BodyTooLarge(Exception):
    """More bytes than MAX_BODY_BYTES."""


class BodyTooSlow(Exception):
    """The body did not arrive within BODY_TIMEOUT_S."""


class ClientGone(Exception):
    """The client closed the connection before its body was whole."""


class Channel:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = Headers(scope=scope)
        self.method: str = scope["method"]
        self._receive, self._send = receive, send
        self.has_begun = False
        """Status and headers were written."""
        self._has_body = (
            "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"
        )
        """Not all of it was read."""
        self._watch: asyncio.Task[None] | None = None

    async def read_body(self, before_part: Callable[[int], None] | None = None) -> bytes:
        """`before_part` is told how many bytes are kept, and may refuse them by raising. Raises
        BodyTooLarge after the rest was discarded, BodyTooSlow, ClientGone."""
        parts: list[bytes] = []
        num_bytes = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while self._has_body:
                    part = await self._next_part()
                    num_bytes += len(part)
                    if num_bytes > MAX_DISCARDED_BYTES:
                        raise BodyTooLarge
                    if num_bytes > MAX_BODY_BYTES:
                        parts.clear()
                    else:
                        if before_part is not None:
                            before_part(len(part))
                        parts.append(part)
        except TimeoutError:
            raise BodyTooSlow from None
        if num_bytes > MAX_BODY_BYTES:
            raise BodyTooLarge
        return b"".join(parts)

    async def discard_body(self) -> None:
        """Before an answer that does not depend on it. Raises ClientGone."""
        num_bytes = 0
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while self._has_body and num_bytes <= MAX_DISCARDED_BYTES:
                    num_bytes += len(await self._next_part())
        except TimeoutError:
            return

    async def wait(self, work: asyncio.Task[Any], timeout_s: float | None = None) -> bool:
        """Until `work` is done or the time is over: true. Until the client is gone: false."""
        watch = self._watching()
        await asyncio.wait({work, watch}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return work.done() or not watch.done()

    async def respond(
        self, status: int, body: dict[str, Any], headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """A whole JSON answer, of which nothing depends on whether it gets through."""
        data = json.dumps(body).encode()
        await self.begin(status, "application/json", headers, num_bytes=len(data))
        await self._write(b"" if self.method == "HEAD" else data, is_last=True)

    async def begin(
        self,
        status: int,
        content_type: str,
        headers: Iterable[tuple[str, str]] = (),
        *,
        num_bytes: int | None = None,
    ) -> None:
        pairs = [("content-type", content_type), *headers]
        if num_bytes is not None:
            pairs.append(("content-length", str(num_bytes)))
        if self._has_body:  # unread bytes would be taken for the next request
            pairs.append(("connection", "close"))
        raw = [(name.encode(), value.encode()) for name, value in pairs]
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def begin_as(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """As another server began it, after the body was read."""
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, text: str) -> None:
        await self._write(text.encode())

    async def write_bytes(self, data: bytes, *, is_last: bool) -> None:
        await self._write(data, is_last=is_last)

    async def finish(self, pieces: list[str], before_last: Callable[[], None]) -> bool:
        """Write the pieces and end the answer. `before_last` is called when all but the last one
        were accepted: only after that can the client have the whole answer."""
        await self._write("".join(pieces[:-1]).encode())
        if not await self._is_accepted():
            return False
        before_last()
        await self._write(pieces[-1].encode())
        if not await self._is_accepted():
            return False
        await self._write(b"", is_last=True)
        return True

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})

    async def _next_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self._has_body = message.get("more_body", False)
        return message.get("body", b"")

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": not is_last}
        await self._send(message)

    async def _is_accepted(self) -> bool:
        # The server waits before each write until nothing of the former is left in its buffer.
        await self._write(b"")
        watch = self._watching()
        await asyncio.sleep(0)  # the turn in which a lost connection ends the watch
        return not watch.done()

    def _watching(self) -> asyncio.Task[None]:
        if self._watch is None:
            self._watch = asyncio.create_task(self._until_gone())
        return self._watch

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
