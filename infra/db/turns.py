"""Turns: what the policy replied, token by token, and what each command did.

Invariants: the first generation and the first result written for (rollout, epoch, turn) stand and
every later attempt gets those back; a write under an older epoch raises Fenced. The hot path of
every rollout: one statement for a reply, one for the history.
"""

import hashlib
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row, and_, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.models import ExecutionRow, ExecutionState, GenerationRow
from mainspring.ids import RolloutId
from mainspring.trajectories.turns import Execution, Generation

GENERATION = (
    GenerationRow.turn,
    GenerationRow.prompt_start,
    GenerationRow.prompt_ids,
    GenerationRow.completion_ids,
    GenerationRow.logprobs,
    GenerationRow.spans,
    GenerationRow.text,
    GenerationRow.finish_reason,
    GenerationRow.latency_s,
    GenerationRow.num_prompt_tokens,
    GenerationRow.num_completion_tokens,
)
"""The fields of a Generation, in their order."""
_EXECUTION = (
    ExecutionRow.turn,
    ExecutionRow.command,
    ExecutionRow.returncode,
    ExecutionRow.output,
    ExecutionRow.truncated,
    ExecutionRow.timed_out,
    ExecutionRow.wall_s,
)
_KEY = ("rollout_id", "epoch")
_RESULT = ("returncode", "output", "output_sha256", "truncated", "timed_out", "wall_s")

_PUTGENERATION = fenced_insert(
    GenerationRow,
    [*_KEY, *(column.key for column in GENERATION)],
    returning=[column.key for column in GENERATION],
)
_PUT_INTENT = fenced_insert(ExecutionRow, [*_KEY, "turn", "command", "state"], returning=["state"])
_PUT_RESULT = fenced_insert(
    ExecutionRow,
    [*_KEY, "turn", "command", "state", *_RESULT],
    on_conflict=(
        "(rollout_id, epoch, turn) DO UPDATE SET finished_at = now(), "
        + ", ".join(f"{name} = excluded.{name}" for name in ("state", *_RESULT))
        + f" WHERE executions.state = '{ExecutionState.INTENT}'"
    ),
    returning=[column.key for column in _EXECUTION],
)
_HISTORY = (
    select(*GENERATION, *_EXECUTION)
    .outerjoin(
        ExecutionRow,
        and_(
            ExecutionRow.rollout_id == GenerationRow.rollout_id,
            ExecutionRow.epoch == GenerationRow.epoch,
            ExecutionRow.turn == GenerationRow.turn,
            ExecutionRow.state == ExecutionState.DONE,
        ),
    )
    .where(
        GenerationRow.rollout_id == bindparam("rollout"), GenerationRow.epoch == bindparam("epoch")
    )
    .order_by(GenerationRow.turn)
)


async def put_generation(
    database: Database, rollout: RolloutId, epoch: int, generation: Generation
) -> Generation:
    """Store a reply; the one that stands: this one, or what an earlier attempt stored. Raises
    Fenced."""
    values = {name: getattr(generation, name) for name in Generation.__slots__}
    values |= {"rollout_id": rollout, "epoch": epoch}
    async with database.transaction() as connection:
        row = (await connection.execute(_PUTGENERATION, values)).one_or_none()
        if row is not None:
            return Generation(*row)
        await refuse_older(connection, rollout, epoch)
        stored = await _generation(connection, rollout, epoch, generation.turn)
        return stored or refuse_finished(rollout)


async def get_generation(
    database: Database, rollout: RolloutId, epoch: int, turn: int
) -> Generation | None:
    async with database.transaction() as connection:
        return await _generation(connection, rollout, epoch, turn)


async def generations(database: Database, rollout: RolloutId, epoch: int) -> list[Generation]:
    """In turn order."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            select(*GENERATION)
            .where(GenerationRow.rollout_id == rollout, GenerationRow.epoch == epoch)
            .order_by(GenerationRow.turn)
        )
        return [Generation(*row) for row in rows]


async def put_intent(
    database: Database, rollout: RolloutId, epoch: int, turn: int, command: str
) -> Execution | None:
    """Record that the command is about to run. The recorded result when it has run already; None:
    run it under its turn id, which re-attaches if an earlier attempt started it. Raises Fenced."""
    values = {
        "rollout_id": rollout,
        "epoch": epoch,
        "turn": turn,
        "command": command,
        "state": ExecutionState.INTENT,
    }
    async with database.transaction() as connection:
        if await connection.scalar(_PUT_INTENT, values) is not None:
            return None
        await refuse_older(connection, rollout, epoch)
        row = await _execution(connection, rollout, epoch, turn)
        if row is None:
            refuse_finished(rollout)
        return Execution(*row[1:]) if row[0] is ExecutionState.DONE else None


async def put_execution(
    database: Database, rollout: RolloutId, epoch: int, execution: Execution
) -> Execution:
    """Store a result; the one that stands, this or an earlier attempt's. Raises Fenced."""
    values = asdict(execution) | {
        "rollout_id": rollout,
        "epoch": epoch,
        "state": ExecutionState.DONE,
        "output_sha256": hashlib.sha256(execution.output).hexdigest(),
    }
    async with database.transaction() as connection:
        row = (await connection.execute(_PUT_RESULT, values)).one_or_none()
        if row is not None:
            return Execution(*row)
        await refuse_older(connection, rollout, epoch)
        stored = await _execution(connection, rollout, epoch, execution.turn)
        if stored is None or stored[0] is not ExecutionState.DONE:
            refuse_finished(rollout)
        return Execution(*stored[1:])


async def executions(database: Database, rollout: RolloutId, epoch: int) -> list[Execution]:
    """Commands that have run, in turn order."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            select(*_EXECUTION)
            .where(
                ExecutionRow.rollout_id == rollout,
                ExecutionRow.epoch == epoch,
                ExecutionRow.state == ExecutionState.DONE,
            )
            .order_by(ExecutionRow.turn)
        )
        return [Execution(*row) for row in rows]


async def history(
    database: Database, rollout: RolloutId, epoch: int
) -> tuple[list[Generation], list[Execution]]:
    """Every reply of the epoch and every command that has run, in turn order; one query."""
    async with database.transaction() as connection:
        rows = (await connection.execute(_HISTORY, {"rollout": rollout, "epoch": epoch})).all()
    middle = len(GENERATION)
    replies = [Generation(*row[:middle]) for row in rows]
    results = [Execution(*row[middle:]) for row in rows if row[middle] is not None]
    return replies, results


async def _generation(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, turn: int
) -> Generation | None:
    row = (
        await connection.execute(
            select(*GENERATION).where(
                GenerationRow.rollout_id == rollout,
                GenerationRow.epoch == epoch,
                GenerationRow.turn == turn,
            )
        )
    ).one_or_none()
    return None if row is None else Generation(*row)


async def _execution(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, turn: int
) -> Row[Any] | None:
    """The state, then the fields of an Execution."""
    result = await connection.execute(
        select(ExecutionRow.state, *_EXECUTION).where(
            ExecutionRow.rollout_id == rollout,
            ExecutionRow.epoch == epoch,
            ExecutionRow.turn == turn,
        )
    )
    return result.one_or_none()
