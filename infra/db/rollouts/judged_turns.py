"""A rollout's turns as judges are shown them: texts, commands and outputs, without tokens.

Invariant: what a judgement of a turn reads does not grow with the rollout, but for one count.
Nothing here is written.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from sqlalchemy import and_, bindparam, func, select

from infra.db.database import Database
from infra.db.tables.models import CallRow, ExecutionRow
from mainspring.ids import RolloutId
from mainspring.rewards.seen import SeenCommand, SeenTurn
from mainspring.status import ExecutionState

_RAN = (
    ExecutionRow.rollout_id == bindparam("rollout"),
    ExecutionRow.epoch == bindparam("epoch"),
    ExecutionRow.state == ExecutionState.DONE,
)
_EXECUTED = (
    select(ExecutionRow.call)
    .where(*_RAN, ExecutionRow.call <= bindparam("number"))
    .distinct()
    .cte("executed")
)
_SHOWN = select(_EXECUTED.c.call).order_by(_EXECUTED.c.call.desc()).limit(bindparam("most"))
_ITS_COMMANDS = and_(
    ExecutionRow.rollout_id == CallRow.rollout_id,
    ExecutionRow.epoch == CallRow.epoch,
    ExecutionRow.call == CallRow.number,
    ExecutionRow.state == ExecutionState.DONE,
)
_COLUMNS = (
    CallRow.number,
    CallRow.text,
    ExecutionRow.command,
    ExecutionRow.returncode,
    ExecutionRow.output,
    ExecutionRow.timed_out,
)
_OF_CALLS = (
    CallRow.rollout_id == bindparam("rollout"),
    CallRow.epoch == bindparam("epoch"),
)
_ORDER = (CallRow.number, ExecutionRow.index)
_UP_TO = (
    select(*_COLUMNS, select(func.count()).select_from(_EXECUTED).scalar_subquery())
    .join(ExecutionRow, _ITS_COMMANDS)
    .where(*_OF_CALLS, CallRow.number.in_(_SHOWN))
    .order_by(*_ORDER)
)
_ALL = select(*_COLUMNS).outerjoin(ExecutionRow, _ITS_COMMANDS).where(*_OF_CALLS).order_by(*_ORDER)


async def up_to(
    db: Database, rollout: RolloutId, epoch: int, call: int, num_before: int
) -> tuple[list[SeenTurn], int]:
    """The turn of `call` and up to `num_before` turns before it, all with commands that ran, and
    how many turns come before these. No turns when the call ran no command."""
    of = {"rollout": rollout, "epoch": epoch, "number": call, "most": num_before + 1}
    async with db.statement() as connection:
        rows = (await connection.execute(_UP_TO, of)).all()
    turns = _turns(rows)
    if not turns or turns[-1].number != call + 1:
        return [], 0
    return turns, rows[0][-1] - len(turns)


async def whole(db: Database, rollout: RolloutId, epoch: int) -> list[SeenTurn]:
    """All turns of the epoch."""
    async with db.statement() as connection:
        rows = (await connection.execute(_ALL, {"rollout": rollout, "epoch": epoch})).all()
    return _turns(rows)


def _turns(rows: Iterable[Any]) -> list[SeenTurn]:
    turns: list[SeenTurn] = []
    for (number, reply), of_call in groupby(rows, key=lambda row: (row[0], row[1])):
        commands = tuple(
            SeenCommand(row[2], row[3], (row[4] or b"").decode(errors="replace"), bool(row[5]))
            for row in of_call
            if row[2] is not None
        )
        turns.append(SeenTurn(number + 1, reply, commands))
    return turns
