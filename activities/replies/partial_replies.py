"""Parts of the replies that a process has under way, written to the store together.

Invariants: at most one write runs at a time; each token is written once, in the order of its reply;
a reply that is stored whole is not written any more. This is only a precaution: where the store
does not answer, parts wait for the next write with a warning, as the reply itself is stored at its
end. One per process and event loop, used by the activities of replies.
"""

import asyncio
import secrets
import time
from dataclasses import dataclass, field

import structlog

from infra.db.database import Database
from infra.db.rollouts import partial_calls
from infra.db.rollouts.partial_calls import CallKey, Kept
from mainspring.errors import DatabaseError
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall, ReplyPart, join_parts

WAIT_S = 0.1
"""Between two writes: with an engine's own interval, what a death costs of each reply."""
MAX_SHARE = 0.2
"""Share of the time spent in writes: a store that is slow is written to less often."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ReplyUnderWay:
    """A reply as one attempt at it has it; another attempt has one of its own."""

    key: CallKey
    sampling: int = 0
    waiting: list[ReplyPart] = field(default_factory=list)
    """Parts that are not written yet."""

    def add(self, part: ReplyPart) -> None:
        if part.start == 0:
            self.sampling, self.waiting = secrets.randbits(62), []
        self.waiting.append(part)


class PartialReplies:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._due: dict[ReplyUnderWay, None] = {}
        self._writing: asyncio.Task[None] | None = None

    async def get(self, rollout: RolloutId, epoch: int, number: int) -> PartialCall | None:
        """The stored beginning of a reply; None: there is none. Raises DatabaseError."""
        return await partial_calls.get(self._db, rollout, epoch, number)

    def keep(self, reply: ReplyUnderWay, part: ReplyPart) -> None:
        """Write it soon. Returns at once: tokens do not wait for the store."""
        reply.add(part)
        self._write_soon(reply)

    def release(self, reply: ReplyUnderWay) -> None:
        """This attempt asks no further: write what it has for the next one."""
        if reply.waiting:
            self._write_soon(reply)

    def forget(self, reply: ReplyUnderWay) -> None:
        """It is stored whole soon."""
        self._due.pop(reply, None)

    def _write_soon(self, reply: ReplyUnderWay) -> None:
        self._due[reply] = None
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._due:
            # What was written meanwhile has nothing left: it was released during its write.
            replies, self._due = [reply for reply in self._due if reply.waiting], {}
            lengths = [(reply.waiting, len(reply.waiting)) for reply in replies]
            beginnings = [
                Kept(*reply.key, reply.sampling, join_parts(reply.waiting)) for reply in replies
            ]
            began = time.monotonic()
            try:
                if beginnings:
                    await partial_calls.put(self._db, beginnings)
                for waiting, num_written in lengths:
                    del waiting[:num_written]
            except DatabaseError as error:
                _log.warning(
                    "parts of replies not stored", num_replies=len(replies), error=str(error)
                )
            took_s = time.monotonic() - began
            await asyncio.sleep(max(WAIT_S, took_s * (1 / MAX_SHARE - 1)))
