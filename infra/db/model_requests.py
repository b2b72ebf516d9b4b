"""Requests of programs: asked once, answered once, found again by every later life.

Invariants: one row for each (rollout, epoch, key, occurrence), whichever gateway asks and however
often; its number is given once and is that of its call; reply and state are written in one
transaction; a request that was answered or refused stays so. An occurrence counts only requests
whose answer the same life had whole: a repetition of one that did not get through is no new one.
"""

import zlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db import turns
from infra.db.database import Database
from infra.db.fence import refuse_finished, refuse_older
from infra.db.models import CallRow, RolloutRow
from infra.db.program_rows import ModelRequestRow
from mainspring.ids import RolloutId
from mainspring.programs.record import BranchKind, RequestState
from mainspring.programs.request import ModelRequest
from mainspring.status import RolloutPhase
from mainspring.trajectories.turns import Call

CHANNEL = "model_requests"
"""Of Postgres' NOTIFY: a rollout's id, a space, an epoch, a space, a number."""
_ROW = ModelRequestRow
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtext(:id))")


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a request stands."""

    number: int
    state: RequestState
    refusal: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Known:
    """A request of the epoch without its body: what branches are found by."""

    number: int
    state: RequestState
    life: int
    first_life: int
    kind: BranchKind
    history: str | None


async def ask(
    database: Database,
    rollout: RolloutId,
    epoch: int,
    life: int,
    request: ModelRequest,
    key: str,
    *,
    kind: BranchKind,
    setting: str,
    is_retry: bool,
) -> Asked:
    """The row of this request, made now or long ago. One of another setting than the first of the
    kind MAIN is a sub-agent's. Raises Fenced."""
    async with database.transaction() as connection:
        # Numbers and occurrences are counted: one at a time for a rollout.
        await connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtext(:id))"), {"id": rollout}
        )
        await _refuse_over(connection, rollout, epoch)
        of_rollout = (_ROW.rollout_id == rollout, _ROW.epoch == epoch)
        delivered = await connection.scalar(
            select(func.count()).where(*of_rollout, _ROW.key == key, _ROW.delivered_life == life)
        )
        occurrence = max(0, (delivered or 0) - (1 if is_retry else 0))
        row = (
            await connection.execute(
                update(_ROW)
                .where(*of_rollout, _ROW.key == key, _ROW.occurrence == occurrence)
                # One of an earlier life may come late: the row is the later one's.
                .values(life=func.greatest(_ROW.life, life))
                .returning(_ROW.number, _ROW.state, _ROW.refusal)
            )
        ).one_or_none()
        if row is not None:
            return Asked(*row)
        if kind is BranchKind.MAIN:
            own = await connection.scalar(
                select(_ROW.setting)
                .where(*of_rollout, _ROW.kind == BranchKind.MAIN)
                .order_by(_ROW.number)
                .limit(1)
            )
            kind = kind if own in (None, setting) else BranchKind.AGENT
        newest = await connection.scalar(select(func.max(_ROW.number)).where(*of_rollout))
        number = 0 if newest is None else newest + 1
        await connection.execute(
            insert(_ROW).values(
                rollout_id=rollout,
                epoch=epoch,
                number=number,
                key=key,
                occurrence=occurrence,
                life=life,
                first_life=life,
                dialect=request.dialect,
                body=zlib.compress(request.model_dump_json().encode(), 1),
                state=RequestState.ASKED,
                kind=kind,
                setting=setting,
            )
        )
        return Asked(number, RequestState.ASKED, None)


async def look(database: Database, rollout: RolloutId, epoch: int, number: int) -> Asked | None:
    """Where it stands now; None once the rollout has ended or another epoch has begun."""
    statement = (
        select(_ROW.number, _ROW.state, _ROW.refusal)
        .join(RolloutRow, RolloutRow.id == _ROW.rollout_id)
        .where(
            _ROW.rollout_id == rollout,
            _ROW.epoch == epoch,
            _ROW.number == number,
            RolloutRow.epoch == epoch,
            RolloutRow.phase != RolloutPhase.DONE,
        )
    )
    async with database.statement() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Asked(*row)


async def body(database: Database, rollout: RolloutId, epoch: int, number: int) -> ModelRequest:
    """What was asked."""
    statement = select(_ROW.body).where(
        _ROW.rollout_id == rollout, _ROW.epoch == epoch, _ROW.number == number
    )
    async with database.statement() as connection:
        packed = (await connection.execute(statement)).scalar_one()
    return _unpacked(packed)


async def bodies(
    database: Database, rollout: RolloutId, epoch: int
) -> dict[int, tuple[BranchKind, ModelRequest]]:
    """All that was asked in an epoch, by number."""
    statement = (
        select(_ROW.number, _ROW.kind, _ROW.body)
        .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch)
        .order_by(_ROW.number)
    )
    async with database.statement() as connection:
        rows = (await connection.execute(statement)).all()
    return {number: (kind, _unpacked(packed)) for number, kind, packed in rows}


async def history(database: Database, rollout: RolloutId, epoch: int) -> list[Known]:
    """Every request of the epoch, by number."""
    statement = (
        select(_ROW.number, _ROW.state, _ROW.life, _ROW.first_life, _ROW.kind, _ROW.history)
        .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch)
        .order_by(_ROW.number)
    )
    async with database.statement() as connection:
        return [Known(*row) for row in await connection.execute(statement)]


async def put_reply(
    database: Database,
    rollout: RolloutId,
    epoch: int,
    call: Call,
    history: str,
) -> Call:
    """Store the reply and tell who waits; the reply that stands, this or an earlier attempt's.
    Raises Fenced."""
    async with database.transaction() as connection:
        stored = await turns.write_call(connection, rollout, epoch, call)
        if stored is None:
            return await turns.standing_call(connection, rollout, epoch, call.number)
        await _settle(
            connection,
            rollout,
            epoch,
            call.number,
            {"state": RequestState.STORED, "history": history},
        )
        return stored


async def refuse(
    database: Database, rollout: RolloutId, epoch: int, number: int, refusal: dict[str, Any]
) -> None:
    """Tell who waits why there is no reply, unless there is one. Raises Fenced."""
    async with database.transaction() as connection:
        await _refuse_over(connection, rollout, epoch)
        await _settle(
            connection,
            rollout,
            epoch,
            number,
            {"state": RequestState.REFUSED, "refusal": refusal},
        )


async def delivered(
    database: Database, rollout: RolloutId, epoch: int, number: int, life: int
) -> None:
    """The life had the whole answer."""
    async with database.statement() as connection:
        await connection.execute(
            update(_ROW)
            .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch, _ROW.number == number)
            .values(delivered_life=func.greatest(_ROW.delivered_life, life))
        )


async def num_prompt_tokens(
    database: Database, rollout: RolloutId, epoch: int, number: int
) -> tuple[Call, int]:
    """A stored reply, and the number of tokens before it on its branch."""
    call = await turns.get_call(database, rollout, epoch, number)
    assert call is not None, f"rollout {rollout}, call {number}: answered, and its reply is missing"
    if call.num_prompt_tokens is not None:
        return call, call.num_prompt_tokens
    return call, call.prompt_start + len(call.prompt_ids)


async def answered(database: Database, rollout: RolloutId, epoch: int) -> int:
    """Number of replies of the epoch."""
    statement = select(func.count()).where(CallRow.rollout_id == rollout, CallRow.epoch == epoch)
    async with database.statement() as connection:
        return (await connection.execute(statement)).scalar_one()


def _unpacked(body: bytes) -> ModelRequest:
    return ModelRequest.model_validate_json(zlib.decompress(body))


async def _settle(
    connection: AsyncConnection,
    rollout: RolloutId,
    epoch: int,
    number: int,
    values: dict[str, Any],
) -> None:
    await connection.execute(
        update(_ROW)
        .where(
            _ROW.rollout_id == rollout,
            _ROW.epoch == epoch,
            _ROW.number == number,
            _ROW.state == RequestState.ASKED,
        )
        .values(**values, answered_at=func.now())
    )
    # Delivered when the transaction commits.
    await connection.execute(
        text("SELECT pg_notify(:channel, :told)"),
        {"channel": CHANNEL, "told": f"{rollout} {epoch} {number}"},
    )


async def _refuse_over(connection: AsyncConnection, rollout: RolloutId, epoch: int) -> None:
    """Raises Fenced unless the rollout lives in this epoch; what is written with it counts."""
    found = await connection.scalar(
        select(RolloutRow.id)
        .where(
            RolloutRow.id == rollout,
            RolloutRow.epoch == epoch,
            RolloutRow.phase != RolloutPhase.DONE,
        )
        .with_for_update(read=True)
    )
    if found is None:
        await refuse_older(connection, rollout, epoch)
        refuse_finished(rollout)
