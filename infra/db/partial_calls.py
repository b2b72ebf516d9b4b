"""The reply under way of each rollout that is being played, as far as it was served.

Invariants: one row a rollout, of its newest call, which only grows; a write under an older epoch
raises Fenced; a rollout that has ended has none. What is here is no record: the reply counts once
it is stored whole (`turns.put_call`). Written and read by the activities of replies; `leftovers`
drops what is left.
"""

from sqlalchemy import select

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_older
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


async def put(
    database: Database, rollout: RolloutId, epoch: int, number: int, partial: PartialCall
) -> None:
    """Keep it, unless the store has as many tokens of the call, or a later one. Raises Fenced for
    another epoch."""
    values = {"rollout_id": rollout, "epoch": epoch, "number": number}
    values |= {name: getattr(partial, name) for name in _TOKENS}
    async with database.transaction() as connection:
        if await connection.scalar(_PUT, values) is None:
            await refuse_older(connection, rollout, epoch)


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
