"""The reply under way of each rollout that is being played, as far as it was served.

Invariants: one row a rollout, of its newest call, which only grows; a write under an older epoch
changes nothing; a rollout that has ended has none. What is here is no record: the reply counts once
it is stored whole (`turns.put_call`). Written and read by the activities of replies; `leftovers`
drops what is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from infra.db.database import Database
from infra.db.fence import fenced_insert
from infra.db.models import PartialCallRow
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import PartialCall

_KEY = ("rollout_id", "epoch", "number")
_TOKENS = ("completion_ids", "logprobs", "spans", "latency_s")
_PUT = fenced_insert(
    PartialCallRow,
    [*_KEY, *_TOKENS],
    on_conflict=(
        "(rollout_id) DO UPDATE SET updated_at = now(), "
        + ", ".join(f"{name} = excluded.{name}" for name in ("epoch", "number", *_TOKENS))
        + " WHERE (partial_calls.epoch, partial_calls.number, "
        "octet_length(partial_calls.completion_ids)) "
        "< (excluded.epoch, excluded.number, octet_length(excluded.completion_ids))"
    ),
    returning=["number"],
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What there is of call `number` of a rollout's life."""

    rollout: RolloutId
    epoch: int
    number: int
    partial: PartialCall


async def put(database: Database, kept: Iterable[Kept]) -> None:
    """Keep each, unless the store has as many tokens of the call, or a later one, or the rollout
    has moved on: that is refused when its reply is stored whole. Raises DatabaseError."""
    values = [
        {"rollout_id": each.rollout, "epoch": each.epoch, "number": each.number}
        | {name: getattr(each.partial, name) for name in _TOKENS}
        # In one order everywhere: two processes that wait for each other's rows would deadlock.
        for each in sorted(kept, key=lambda each: each.rollout)
    ]
    async with database.transaction() as connection:
        await connection.execute(_PUT, values)


async def get(
    database: Database, rollout: RolloutId, epoch: int, number: int
) -> PartialCall | None:
    """None when nothing of this call was kept."""
    async with database.transaction() as connection:
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
