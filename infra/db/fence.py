"""The fence: a write of one rollout's life counts only while that life is the current one.

Invariants: a write under an older epoch raises Fenced and changes nothing; a finished rollout never
changes again. Check and write are one statement: FOR SHARE, or the UPDATE itself, waits for a
claim in progress and sees what it decided. Imported by the modules beside this file; Fenced and
UnknownId by everyone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from sqlalchemy import ColumnElement, TextualSelect, bindparam, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.db.database import Database
from infra.db.tables.models import Base, RolloutRow
from mainspring.errors import MainspringError, UsageError
from mainspring.ids import RolloutId
from mainspring.status import FaultKind, RolloutPhase

T = TypeVar("T")


class Fenced(MainspringError):
    """Another life of the rollout has begun, or it has ended: this attempt must stop."""

    fault = FaultKind.FENCED


class UnknownId(UsageError):
    """Nothing is stored under this id."""

    fault = FaultKind.UNEXPECTED


def fenced_insert(
    table: type[Base],
    columns: Sequence[str],
    *,
    on_conflict: str = "DO NOTHING",
    returning: Sequence[str],
    around: str = "{insert}",
) -> TextualSelect:
    """INSERT of one row, a parameter per column, that finds nothing to insert from when the rollout
    has moved on. `columns` include rollout_id and epoch. `around`: a statement with more to do,
    whose result begins with the columns `returning`. Build it once.

    Written as text because SQLAlchemy compiles its own ON CONFLICT anew at every execution, which
    takes ten times as long as Postgres does.
    """
    table_columns = table.__table__.c
    insert = (
        f"INSERT INTO {table.__tablename__} ({', '.join(columns)}) "
        f"SELECT {', '.join(f':{name}' for name in columns)} FROM rollouts "
        f"WHERE id = :rollout_id AND epoch = :epoch AND phase <> '{RolloutPhase.DONE}' FOR SHARE "
        f"ON CONFLICT {on_conflict} RETURNING {', '.join(returning)}"
    )
    return (
        text(around.replace("{insert}", insert))
        .bindparams(*(bindparam(name, type_=table_columns[name].type) for name in columns))
        .columns(*(table_columns[name] for name in returning))
    )


async def current_epoch(connection: AsyncConnection, rollout: RolloutId) -> int:
    """The epoch that the rollout lives in. Raises UnknownId."""
    epoch = await connection.scalar(select(RolloutRow.epoch).where(RolloutRow.id == rollout))
    if epoch is None:
        raise unknown("rollout", rollout)
    return epoch


async def refuse_older(connection: AsyncConnection, rollout: RolloutId, epoch: int) -> None:
    """Refuse an older epoch. Raises Fenced when `epoch` is not the rollout's own."""
    current = await current_epoch(connection, rollout)
    if current != epoch:
        raise Fenced(f"rollout {rollout}: epoch {epoch} is over, epoch {current} has begun")


def refuse_finished(rollout: RolloutId) -> NoReturn:
    """Raise Fenced: nothing is recorded after an end."""
    raise Fenced(f"rollout {rollout} has ended; nothing more is recorded for it")


async def update_rollout(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    values: Mapping[str, Any],
    *,
    only_if: ColumnElement[bool] | None = None,
    returning: InstrumentedAttribute[T],
) -> T:
    """Write `values` if the rollout lives in `epoch` and `only_if` holds; the value of `returning`
    that stands afterwards, whichever attempt wrote it. Raises Fenced for another epoch."""
    statement = (
        update(RolloutRow)
        .where(
            RolloutRow.id == rollout,
            RolloutRow.epoch == epoch,
            RolloutRow.phase != RolloutPhase.DONE,
        )
        .values(values)
        .returning(returning)
    )
    if only_if is not None:
        statement = statement.where(only_if)
    async with db.statement() as connection:
        row = (await connection.execute(statement)).one_or_none()
        if row is not None:
            return row[0]
        await refuse_older(connection, rollout, epoch)
        stands = await connection.execute(select(returning).where(RolloutRow.id == rollout))
        return stands.scalar_one()


async def write_once(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    values: Mapping[str, Any],
    *,
    column: InstrumentedAttribute[T | None],
) -> T:
    """Write `values`, `column` among them, unless it was written before; the `column` that stands.
    Raises Fenced for another epoch, and when the rollout ended without it."""
    stands = await update_rollout(
        db, rollout, epoch, values, only_if=column.is_(None), returning=column
    )
    if stands is None:
        refuse_finished(rollout)
    return stands


def unknown(noun: str, name: object) -> UnknownId:
    """The error for an id that is not stored."""
    return UnknownId(
        f"no {noun} {name} is stored", remedy="check the id and MAINSPRING_DATABASE_URL"
    )
