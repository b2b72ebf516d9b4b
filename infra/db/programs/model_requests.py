"""Requests of programs: asked once, answered once, found again by every later life.

Invariants: one row for each (rollout, epoch, key, occurrence), whichever gateway asks and however
often; its number is given once and is that of its call; reply and state are written in one
transaction; a request that was answered or refused stays so. An occurrence counts only requests
whose answer the same life had whole: a repetition of one that did not get through is no new one.
One that is marked as a retry repeats the newest occurrence.
"""

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Integer,
    Select,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    select,
    text,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.rollouts import turns
from infra.db.tables.models import CallRow, RolloutRow
from infra.db.tables.program_rows import ModelRequestRow
from mainspring.ids import RolloutId
from mainspring.programs.record import BranchKind, RequestState
from mainspring.programs.refusal import Refusal, RefusalKind
from mainspring.programs.request import ModelRequest
from mainspring.status import RolloutPhase
from mainspring.trajectories.turns import Call

CHANNEL = "model_requests"
"""Channel of Postgres' NOTIFY. Payload: a rollout's id, a space, an epoch, a space, a number."""
_ROW = ModelRequestRow
_KNOWN = (
    *(_ROW.number, _ROW.state, _ROW.life, _ROW.first_life, _ROW.kind, _ROW.history, _ROW.num_sent),
)
_THIS = (
    _ROW.rollout_id == bindparam("rollout"),
    _ROW.epoch == bindparam("epoch"),
    _ROW.number == bindparam("number"),
)
_ITS_CALL = and_(
    CallRow.rollout_id == _ROW.rollout_id,
    CallRow.epoch == _ROW.epoch,
    CallRow.number == _ROW.number,
)
_READ = select(_ROW.state, _ROW.body, *turns.CALL).outerjoin(CallRow, _ITS_CALL).where(*_THIS)
_LOOK = (
    select(_ROW.state, _ROW.refusal, *turns.CALL)
    .join(RolloutRow, RolloutRow.id == _ROW.rollout_id)
    .outerjoin(CallRow, _ITS_CALL)
    .where(*_THIS, RolloutRow.epoch == _ROW.epoch, RolloutRow.phase != RolloutPhase.DONE)
)
_REPLY = [column.key for column in turns.CALL]
_PUT_REPLY = fenced_insert(
    CallRow,
    ["rollout_id", "epoch", *_REPLY],
    returning=_REPLY,
    # Statement, and so round trip, one: a reply waits for nothing else. Notices are delivered when
    # it commits.
    around=(
        "WITH stored AS ({insert}), settled AS ("
        f"UPDATE model_requests SET state = '{RequestState.STORED}', history = :history, "
        "answered_at = now() FROM stored WHERE model_requests.rollout_id = :rollout_id AND "
        "model_requests.epoch = :epoch AND model_requests.number = stored.number AND "
        f"model_requests.state = '{RequestState.ASKED}') "
        f"SELECT {', '.join(_REPLY)}, pg_notify('{CHANNEL}', :told) FROM stored"
    ),
)


def _place() -> Select[Any]:
    """Which occurrence of its key a request is, and the row of that one, now of this life, with the
    life that asked it before; the newest number and the setting of the first request of the kind
    MAIN. Build it once."""
    # Parameters named as columns would be taken for values of the UPDATE.
    of_rollout = (_ROW.rollout_id == bindparam("rollout"), _ROW.epoch == bindparam("of_epoch"))
    of_key = (*of_rollout, _ROW.key == bindparam("of_key"))
    life = bindparam("of_life", type_=Integer)
    had = select(func.count()).where(*of_key, _ROW.delivered_life == life).scalar_subquery()
    retried = bindparam("retried", type_=Integer)
    # Asked by this life, and its answer did not get through: a retry is one of it.
    is_due = exists().where(*of_key, _ROW.occurrence == had, _ROW.life == life)
    facts = select(
        case((is_due, had), else_=func.greatest(0, had - retried)).label("occurrence"),
        select(func.max(_ROW.number)).where(*of_rollout).scalar_subquery().label("newest"),
        select(_ROW.setting)
        .where(*of_rollout, _ROW.kind == BranchKind.MAIN)
        .order_by(_ROW.number)
        .limit(1)
        .scalar_subquery()
        .label("own"),
    ).cte("facts")
    of_request = (*of_key, _ROW.occurrence == select(facts.c.occurrence).scalar_subquery())
    # The rest of a statement does not see what its UPDATE changes.
    before = select(_ROW.life).where(*of_request).scalar_subquery().label("before")
    again = (
        update(_ROW)
        .where(*of_request)
        # One of an earlier life may come late: the row is the later one's.
        .values(life=func.greatest(_ROW.life, life))
        .returning(_ROW.number, _ROW.state, _ROW.refusal)
        .cte("again")
    )
    return select(facts, before, again).outerjoin(again, true())


_PLACE = _place()


@dataclass(frozen=True, slots=True)
class RequestStanding:
    """Where a request stands."""

    number: int
    state: RequestState
    refusal: dict[str, Any] | None
    is_new: bool = False
    """Its row was made just now: no workflow knows of it."""
    is_repeat: bool = False
    """The same life has asked it before."""
    call: Call | None = None
    """Its reply, where it was read."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request of the epoch without its body: what branches are found by."""

    number: int
    state: RequestState
    life: int
    first_life: int
    kind: BranchKind
    history: str | None
    num_sent: int


async def ask(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    life: int,
    request: ModelRequest,
    key: str,
    *,
    kind: BranchKind,
    setting: str,
    is_retry: bool,
) -> RequestStanding:
    """The row of this request, made now or long ago. One of another setting than the first of the
    kind MAIN is a sub-agent's. Raises Fenced."""
    async with db.transaction() as connection:
        # Numbers and occurrences are counted: one at a time for a rollout.
        await _refuse_over(connection, rollout, epoch, alone=True)
        facts = {
            "rollout": rollout,
            "of_epoch": epoch,
            "of_life": life,
            "of_key": key,
            "retried": 1 if is_retry else 0,
        }
        row = (await connection.execute(_PLACE, facts)).one()
        occurrence, newest, own, before, *again = row
        if again[0] is not None:
            return RequestStanding(*again, is_repeat=before == life)
        if kind is BranchKind.MAIN:
            kind = kind if own in (None, setting) else BranchKind.AGENT
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
                body=zlib.compress(request.model_dump_json(exclude_defaults=True).encode(), 1),
                state=RequestState.ASKED,
                kind=kind,
                setting=setting,
            )
        )
        return RequestStanding(number, RequestState.ASKED, None, is_new=True)


async def look(db: Database, rollout: RolloutId, epoch: int, number: int) -> RequestStanding | None:
    """Where it stands now, with its reply; None once the rollout has ended or another epoch has
    begun."""
    parameters = {"rollout": rollout, "epoch": epoch, "number": number}
    async with db.statement() as connection:
        row = (await connection.execute(_LOOK, parameters)).one_or_none()
    if row is None:
        return None
    state, refusal, *call = row
    return RequestStanding(number, state, refusal, call=None if call[0] is None else Call(*call))


async def read(
    db: Database, rollout: RolloutId, epoch: int, number: int
) -> tuple[RequestState, ModelRequest, Call | None]:
    """The request with its state, and its reply if that is stored."""
    parameters = {"rollout": rollout, "epoch": epoch, "number": number}
    async with db.statement() as connection:
        state, packed, *call = (await connection.execute(_READ, parameters)).one()
    return state, _unpacked(packed), None if call[0] is None else Call(*call)


async def bodies(
    db: Database, rollout: RolloutId, epoch: int, numbers: Collection[int] | None = None
) -> dict[int, tuple[BranchKind, ModelRequest]]:
    """All that was asked in an epoch, or in `numbers` of it, by number."""
    statement = (
        select(_ROW.number, _ROW.kind, _ROW.body)
        .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch)
        .order_by(_ROW.number)
    )
    if numbers is not None:
        statement = statement.where(_ROW.number.in_(numbers))
    async with db.statement() as connection:
        rows = (await connection.execute(statement)).all()
    return {number: (kind, _unpacked(packed)) for number, kind, packed in rows}


async def history(db: Database, rollout: RolloutId, epoch: int) -> list[StoredRequest]:
    """Every request of the epoch, by number."""
    statement = (
        select(*_KNOWN).where(_ROW.rollout_id == rollout, _ROW.epoch == epoch).order_by(_ROW.number)
    )
    async with db.statement() as connection:
        return [StoredRequest(*row) for row in await connection.execute(statement)]


async def put_reply(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    call: Call,
    history: str,
) -> Call:
    """Store the reply and tell who waits; the reply that stands, this or an earlier attempt's.
    Raises Fenced."""
    values = {name: getattr(call, name) for name in _REPLY}
    values |= {
        "rollout_id": rollout,
        "epoch": epoch,
        "history": history,
        "told": _told(rollout, epoch, call.number),
    }
    async with db.statement() as connection:
        row = (await connection.execute(_PUT_REPLY, values)).one_or_none()
        if row is None:
            return await turns.standing_call(connection, rollout, epoch, call.number)
        return Call(*row[: len(_REPLY)])


async def refuse(
    db: Database, rollout: RolloutId, epoch: int, number: int, refusal: dict[str, Any]
) -> None:
    """Tell who waits why there is no reply, unless there is one. Raises Fenced."""
    async with db.transaction() as connection:
        await _refuse_over(connection, rollout, epoch)
        await _settle(
            connection,
            rollout,
            epoch,
            number,
            {"state": RequestState.REFUSED, "refusal": refusal},
        )


async def ended_too_long(db: Database, rollout: RolloutId, epoch: int, life: int) -> bool:
    """Whether the last request of a life was refused because its prompt was too long."""
    statement = (
        select(_ROW.state, _ROW.refusal)
        .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch, _ROW.life == life)
        .order_by(_ROW.number.desc())
        .limit(1)
    )
    async with db.statement() as connection:
        row = (await connection.execute(statement)).one_or_none()
    if row is None or row.state is not RequestState.REFUSED:
        return False
    return Refusal.model_validate(row.refusal).kind is RefusalKind.PROMPT_TOO_LONG


async def count_sent(
    db: Database, rollout: RolloutId, epoch: int, number: int, change: int
) -> None:
    """An endpoint is about to take the request (1), or has not taken it (-1)."""
    async with db.statement() as connection:
        await connection.execute(
            update(_ROW)
            .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch, _ROW.number == number)
            .values(num_sent=_ROW.num_sent + change)
        )


async def answered(db: Database, rollout: RolloutId, epoch: int) -> int:
    """Number of replies of the epoch."""
    statement = select(func.count()).where(CallRow.rollout_id == rollout, CallRow.epoch == epoch)
    async with db.statement() as connection:
        return (await connection.execute(statement)).scalar_one()


async def asked(db: Database, rollout: RolloutId, epoch: int) -> int:
    """Number of requests of the epoch, answered or not."""
    statement = select(func.count()).where(_ROW.rollout_id == rollout, _ROW.epoch == epoch)
    async with db.statement() as connection:
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
        {"channel": CHANNEL, "told": _told(rollout, epoch, number)},
    )


def _told(rollout: RolloutId, epoch: int, number: int) -> str:
    return f"{rollout} {epoch} {number}"


async def _refuse_over(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, *, alone: bool = False
) -> None:
    """Raises Fenced unless the rollout lives in this epoch; what is written with it counts.
    `alone`: no other transaction that asks for this passes until this one has ended."""
    living = await connection.scalar(
        select(RolloutRow.id)
        .where(
            RolloutRow.id == rollout,
            RolloutRow.epoch == epoch,
            RolloutRow.phase != RolloutPhase.DONE,
        )
        .with_for_update(read=not alone, key_share=alone)
    )
    if living is None:
        await refuse_older(connection, rollout, epoch)
        refuse_finished(rollout)
