"""From the bytes of a request body to what is asked, within what one session may take of a process.

Invariant: a program that sends large bodies on all its connections holds MAX_AT_ONCE of them in
memory and delays the other sessions by no more than one. Imported by the gateway's application.
"""

import asyncio
from weakref import WeakValueDictionary

from gateway.channel import Channel, ClientGone
from gateway.dialects.json_value import BadRequest, JsonValue, decoded
from gateway.dialects.protocol import DialectWire, Envelope, ParsedRequest, Problem
from gateway.protocol import Session
from gateway.refusals import problem_of

MAX_AT_ONCE = 8
"""Bodies of one session that are read at the same time; the others wait unread."""
LARGE_BYTES = 1024 * 1024
"""Decoding more takes longer than the event loop may stand still."""


class Bodies:
    def __init__(self) -> None:
        self._turns: WeakValueDictionary[Session, asyncio.Semaphore] = WeakValueDictionary()
        self._large = asyncio.Lock()

    async def read(
        self, channel: Channel, session: Session, wire: DialectWire, envelope: Envelope
    ) -> ParsedRequest | Problem:
        """Raises ClientGone."""
        turns = self._turns.setdefault(session, asyncio.Semaphore(MAX_AT_ONCE))
        try:
            async with turns:
                if (encoding := channel.headers.get("content-encoding", "identity")) != "identity":
                    await channel.discard_body()
                    raise BadRequest(f"the body is compressed ({encoding}): send it as it is")
                body = await self._decoded(await channel.read_body())
            return wire.parse(body, envelope)
        except ClientGone:
            raise
        except Exception as error:
            return problem_of(error, session)

    async def _decoded(self, data: bytes) -> JsonValue:
        if len(data) <= LARGE_BYTES:
            return decoded(data)
        async with self._large:
            return await asyncio.to_thread(decoded, data)
