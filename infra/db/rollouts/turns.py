"""Turns: what the policy replied, token by token, and what each command did.

Invariants: the first call written for (rollout, epoch, number) and the first result for (rollout,
epoch, call, index) stand, and every later attempt gets those back; a write under an older epoch
raises Fenced. The hot path of every rollout: one statement for a reply, one for the history.
"""

import hashlib
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, and_, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.tables.models import CallRow, ExecutionRow
from mainspring.ids import RolloutId
from mainspring.status import ExecutionState
from mainspring.trajectories.turns import Call, Execution

LAST_NUMBER = 2**31 - 1
"""No call has a higher one."""
CALL = (
    CallRow.number,
    CallRow.parent,
    CallRow.prompt_start,
    CallRow.prompt_ids,
    CallRow.completion_ids,
    CallRow.logprobs,
    CallRow.spans,
    CallRow.text,
    CallRow.finish_reason,
    CallRow.latency_s,
    CallRow.num_prompt_tokens,
    CallRow.num_completion_tokens,
    CallRow.parts,
    CallRow.rewritten,
    CallRow.is_summary,
    CallRow.engine,
)
"""The fields of a Call, in their order."""
_EXECUTION = (
    ExecutionRow.call,
    ExecutionRow.index,
    ExecutionRow.command,
    ExecutionRow.returncode,
    ExecutionRow.output,
    ExecutionRow.truncated,
    ExecutionRow.timed_out,
    ExecutionRow.wall_s,
    ExecutionRow.reward,
    ExecutionRow.is_over,
)
_KEY = ("rollout_id", "epoch")
_RESULT = (
    *("returncode", "output", "output_sha256", "truncated", "timed_out", "wall_s"),
    *("reward", "is_over"),
)

_PUT_CALL = fenced_insert(
    CallRow,
    [*_KEY, *(column.key for column in CALL)],
    returning=[column.key for column in CALL],
)
_PUT_INTENT = fenced_insert(
    ExecutionRow, [*_KEY, "call", "index", "command", "state"], returning=["state"]
)
_PUT_RESULT = fenced_insert(
    ExecutionRow,
    [*_KEY, "call", "index", "command", "state", *_RESULT],
    on_conflict=(
        "(rollout_id, epoch, call, index) DO UPDATE SET finished_at = now(), "
        + ", ".join(f"{name} = excluded.{name}" for name in ("state", *_RESULT))
        + f" WHERE executions.state = '{ExecutionState.INTENT}'"
    ),
    returning=[column.key for column in _EXECUTION],
)
# Built once: to build a SELECT of a dozen columns takes SQLAlchemy as long as to run it.
_ONE_CALL = select(*CALL).where(
    CallRow.rollout_id == bindparam("rollout"),
    CallRow.epoch == bindparam("epoch"),
    CallRow.number == bindparam("number"),
)
_ONE_EXECUTION = select(ExecutionRow.state, *_EXECUTION).where(
    ExecutionRow.rollout_id == bindparam("rollout"),
    ExecutionRow.epoch == bindparam("epoch"),
    ExecutionRow.call == bindparam("number"),
    ExecutionRow.index == bindparam("which"),
)
_HISTORY = (
    select(*CALL, *_EXECUTION)
    .outerjoin(
        ExecutionRow,
        and_(
            ExecutionRow.rollout_id == CallRow.rollout_id,
            ExecutionRow.epoch == CallRow.epoch,
            ExecutionRow.call == CallRow.number,
            ExecutionRow.state == ExecutionState.DONE,
        ),
    )
    .where(
        CallRow.rollout_id == bindparam("rollout"),
        CallRow.epoch == bindparam("epoch"),
        CallRow.number.between(bindparam("first"), bindparam("last")),
    )
    .order_by(CallRow.number, ExecutionRow.index)
)


async def put_call(db: Database, rollout: RolloutId, epoch: int, call: Call) -> Call:
    """Store a reply; the one that stands: this one, or what an earlier attempt stored. Raises
    Fenced."""
    async with db.statement() as connection:
        new_call = await write_call(connection, rollout, epoch, call)
        return new_call or await standing_call(connection, rollout, epoch, call.number)


async def write_call(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, call: Call
) -> Call | None:
    """The reply as stored now; None when one stands already, or the rollout has moved on."""
    values = {name: getattr(call, name) for name in Call.__slots__}
    values |= {"rollout_id": rollout, "epoch": epoch}
    row = (await connection.execute(_PUT_CALL, values)).one_or_none()
    return None if row is None else Call(*row)


async def standing_call(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, number: int
) -> Call:
    """The reply that an earlier attempt stored. Raises Fenced."""
    await refuse_older(connection, rollout, epoch)
    return await _call(connection, rollout, epoch, number) or refuse_finished(rollout)


async def get_call(db: Database, rollout: RolloutId, epoch: int, number: int) -> Call | None:
    """The stored reply of this number; None when there is none."""
    async with db.statement() as connection:
        return await _call(connection, rollout, epoch, number)


async def put_intent(
    db: Database, rollout: RolloutId, epoch: int, call: int, index: int, command: str
) -> Execution | None:
    """Record that command `index` of a call is about to run. The recorded result when it has run
    already; None: run it under its own id, which re-attaches if an earlier attempt started it.
    Raises Fenced."""
    values = {
        "rollout_id": rollout,
        "epoch": epoch,
        "call": call,
        "index": index,
        "command": command,
        "state": ExecutionState.INTENT,
    }
    async with db.statement() as connection:
        if await connection.scalar(_PUT_INTENT, values) is not None:
            return None
        await refuse_older(connection, rollout, epoch)
        row = await _execution(connection, rollout, epoch, call, index)
        if row is None:
            refuse_finished(rollout)
        return Execution(*row[1:]) if row[0] is ExecutionState.DONE else None


async def put_execution(
    db: Database, rollout: RolloutId, epoch: int, execution: Execution
) -> Execution:
    """Store a result; the one that stands, this or an earlier attempt's. Raises Fenced."""
    values = asdict(execution) | {
        "rollout_id": rollout,
        "epoch": epoch,
        "state": ExecutionState.DONE,
        "output_sha256": hashlib.sha256(execution.output).hexdigest(),
    }
    async with db.statement() as connection:
        row = (await connection.execute(_PUT_RESULT, values)).one_or_none()
        if row is not None:
            return Execution(*row)
        await refuse_older(connection, rollout, epoch)
        stored = await _execution(connection, rollout, epoch, execution.call, execution.index)
        if stored is None or stored[0] is not ExecutionState.DONE:
            refuse_finished(rollout)
        return Execution(*stored[1:])


async def history(
    db: Database, rollout: RolloutId, epoch: int, first: int = 0, last: int = LAST_NUMBER
) -> tuple[list[Call], list[Execution]]:
    """Every call of the epoch from call `first` to call `last` and every command of theirs that has
    run, in their order; one query."""
    parameters = {"rollout": rollout, "epoch": epoch, "first": first, "last": last}
    async with db.statement() as connection:
        rows = (await connection.execute(_HISTORY, parameters)).all()
    middle = len(CALL)
    replies = {row[0]: row for row in rows}
    results = [Execution(*row[middle:]) for row in rows if row[middle] is not None]
    return [Call(*row[:middle]) for row in replies.values()], results


async def _call(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, number: int
) -> Call | None:
    key = {"rollout": rollout, "epoch": epoch, "number": number}
    row = (await connection.execute(_ONE_CALL, key)).one_or_none()
    return None if row is None else Call(*row)


async def _execution(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, call: int, index: int
) -> Row[Any] | None:
    """The state, then the fields of an Execution."""
    key = {"rollout": rollout, "epoch": epoch, "number": call, "which": index}
    return (await connection.execute(_ONE_EXECUTION, key)).one_or_none()
