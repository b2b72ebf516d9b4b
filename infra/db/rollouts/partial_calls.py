"""The replies under way of each rollout that is being played, as far as they were served.

Invariants: one row for each call under way, which only grows; a write under an older epoch changes
nothing; each write drops what its rollouts have of calls that are stored whole and of epochs that
are over; a rollout that has ended has none. What is here is no record: the reply counts once it is
stored whole (`turns.put_call`). Written and read by the activities of replies; `leftovers` drops
what is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ARRAY, Text, bindparam, select, text

from infra.db.database import Database
from infra.db.fence import fenced_insert
from infra.db.tables.models import PartialCallRow
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall

CallKey = tuple[RolloutId, int, int]
"""A call: its rollout, epoch and number."""
_KEY = ("rollout_id", "epoch", "number")
_TOKENS = ("completion_ids", "logprobs", "spans", "latency_s")
_PUT = fenced_insert(
    PartialCallRow,
    [*_KEY, *_TOKENS],
    on_conflict=(
        f"({', '.join(_KEY)}) DO UPDATE SET updated_at = now(), "
        + ", ".join(f"{name} = excluded.{name}" for name in _TOKENS)
        + " WHERE octet_length(partial_calls.completion_ids) "
        "< octet_length(excluded.completion_ids)"
    ),
    returning=["number"],
)
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
    """The beginning of call `number` of a rollout's life."""

    rollout: RolloutId
    epoch: int
    number: int
    partial: PartialCall

    @property
    def key(self) -> CallKey:
        return self.rollout, self.epoch, self.number


async def put(db: Database, kept: Iterable[Kept]) -> None:
    """Keep beginnings of replies, unless the store has as many tokens of the call, or the whole of
    it, or the rollout has moved on: that is refused when its reply is stored whole. Raises
    DatabaseError."""
    kept = list(kept)
    values = [
        {"rollout_id": each.rollout, "epoch": each.epoch, "number": each.number}
        | {name: getattr(each.partial, name) for name in _TOKENS}
        # In one order everywhere: two processes that wait for each other's rows would deadlock.
        for each in sorted(kept, key=lambda each: each.key)
    ]
    async with db.transaction() as connection:
        await connection.execute(_PUT, values)
        await connection.execute(_DROP, {"rollouts": sorted({each.rollout for each in kept})})


async def get(db: Database, rollout: RolloutId, epoch: int, number: int) -> PartialCall | None:
    """The beginning of a reply; None when nothing of it was kept."""
    async with db.transaction() as connection:
        row = (
            await connection.execute(
                select(*(getattr(PartialCallRow, name) for name in _TOKENS)).where(
                    PartialCallRow.rollout_id == rollout,
                    PartialCallRow.epoch == epoch,
                    PartialCallRow.number == number,
                )
            )
        ).one_or_none()
    return None if row is None else PartialCall(*row)
