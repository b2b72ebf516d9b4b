"""The replies under way of each rollout that is being played, as far as they were served.

Invariants: a reply under way is rows of one sampling, each with the tokens since the row before, so
that what is written is linear in its length; rows of one sampling are written by one process in
order and never change; a write under an older epoch changes nothing; each write drops what its
rollouts have of calls that are stored whole and of epochs that are over; a rollout that has ended
has none. What is here is no record: the reply counts once it is stored whole (`turns.put_call`).
Written and read by the activities of replies; `leftovers` drops what is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import ARRAY, Text, bindparam, select, text

from infra.db.database import Database
from infra.db.fence import fenced_insert
from infra.db.tables.models import PartialCallRow
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall, ReplyPart, begun_by

CallKey = tuple[RolloutId, int, int]
"""A call: its rollout, epoch and number."""
_PART = ("start", "completion_ids", "logprobs", "spans", "latency_s")
_KEY = ("rollout_id", "epoch", "number", "sampling")
_PUT = fenced_insert(PartialCallRow, [*_KEY, *_PART], returning=["number"])
# Rows that another process writes at this moment are left to the next time: waiting for each
# other's rows, two processes would deadlock.
_DROP = text(
    "DELETE FROM partial_calls WHERE (rollout_id, epoch, number) IN ("
    "SELECT partial.rollout_id, partial.epoch, partial.number FROM partial_calls AS partial "
    "JOIN rollouts ON rollouts.id = partial.rollout_id "
    "WHERE partial.rollout_id = ANY(:rollouts) AND (partial.epoch < rollouts.epoch OR EXISTS ("
    "SELECT FROM calls WHERE calls.rollout_id = partial.rollout_id "
    "AND calls.epoch = partial.epoch AND calls.number = partial.number)) "
    "FOR UPDATE OF partial SKIP LOCKED)"
).bindparams(bindparam("rollouts", type_=ARRAY(Text)))


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of the reply of call `number` of a rollout's life."""

    rollout: RolloutId
    epoch: int
    number: int
    sampling: int
    part: ReplyPart

    @property
    def key(self) -> CallKey:
        return self.rollout, self.epoch, self.number


async def put(db: Database, beginnings: Iterable[Kept]) -> None:
    """Keep parts of replies, unless the store has them, or the whole of the call, or the rollout
    has moved on: that is refused when its reply is stored whole. Raises DatabaseError."""
    beginnings = list(beginnings)
    values = [
        {"rollout_id": beginning.rollout, "epoch": beginning.epoch, "number": beginning.number}
        | {"sampling": beginning.sampling}
        | {name: getattr(beginning.part, name) for name in _PART}
        # In one order everywhere: two processes that wait for each other's rows would deadlock.
        for beginning in sorted(
            beginnings,
            key=lambda beginning: (beginning.key, beginning.sampling, beginning.part.start),
        )
    ]
    async with db.transaction() as connection:
        await connection.execute(_PUT, values)
        await connection.execute(
            _DROP, {"rollouts": sorted({beginning.rollout for beginning in beginnings})}
        )


async def get(db: Database, rollout: RolloutId, epoch: int, number: int) -> PartialCall | None:
    """The longest beginning of a reply; None when nothing of it was kept."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(PartialCallRow.sampling, *(getattr(PartialCallRow, name) for name in _PART))
            .where(
                PartialCallRow.rollout_id == rollout,
                PartialCallRow.epoch == epoch,
                PartialCallRow.number == number,
            )
            .order_by(PartialCallRow.sampling, PartialCallRow.start)
        )
    samplings = groupby(rows, key=lambda row: row[0])
    beginnings = (begun_by(ReplyPart(*row[1:]) for row in rows) for _, rows in samplings)
    return max(
        filter(None, beginnings), key=lambda beginning: len(beginning.completion_ids), default=None
    )
