"""A route as an application of its own: Starlette's requests do not tell a lost client.

Invariants: a request whose end depends on who reads it is refused unread; what a handler raises is
told in the form that clients of the route read, unless the answer has begun. Imported by the
applications of the gateway and of its edge.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.channel import Channel, ClientGone
from gateway.dialects.protocol import Problem, ProblemKind
from gateway.refusals import problem_of, refuse
from gateway.wires import wire_of

Handler = Callable[[Channel], Awaitable[None]]
Refuse = Callable[[Channel, Problem], Awaitable[None]]
_ENDING = Problem(ProblemKind.UNAVAILABLE, "this gateway ends: ask again")
_TWO_LENGTHS = Problem(
    ProblemKind.BAD_REQUEST,
    "a request has a content-length or a transfer-encoding, not both",
)


async def refuse_in_dialect(channel: Channel, problem: Problem) -> None:
    await refuse(channel, wire_of(channel.scope["path"], channel.headers), problem)


@dataclass(frozen=True, slots=True)
class Endpoint:
    handler: Handler
    refuse: Refuse = refuse_in_dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        channel = Channel(scope, receive, send)
        try:
            if "content-length" in channel.headers and "transfer-encoding" in channel.headers:
                # Where its body ends depends on who reads it: it may hide another request.
                await self.refuse(channel, _TWO_LENGTHS)
            else:
                await self.handler(channel)
        except ClientGone:
            return
        except asyncio.CancelledError:
            # This server ends. The rest of a stream is cut: clients ask again, here or elsewhere.
            if not channel.has_begun:
                await self.refuse(channel, _ENDING)
        except Exception as error:
            if channel.has_begun:
                raise  # the server cuts the connection and logs the error
            await self.refuse(channel, problem_of(error))
        finally:
            await channel.close()
