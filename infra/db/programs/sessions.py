"""Sessions of agents outside, as they stand: found by key, by rollout, or waiting to be taken.

Offered and taken in `session_offers`, ended in `session_ends`. Imported by both, the gateway, the
rollout's activities and reports.
"""

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Row,
    Select,
    and_,
    cast,
    extract,
    func,
    select,
    update,
)

from infra.db.database import Database
from infra.db.fence import Fenced
from infra.db.programs import program_lives
from infra.db.tables.models import RolloutRow
from infra.db.tables.program_rows import ProgramLifeRow
from infra.db.tables.session_rows import OfferedSessionRow
from mainspring.ids import CampaignId, RolloutId, TaskId, session_id
from mainspring.programs.session import SessionEnd
from mainspring.status import RolloutPhase

_ROW = OfferedSessionRow
LIVES = and_(RolloutRow.epoch == _ROW.epoch, RolloutRow.phase != RolloutPhase.DONE)
"""The rollout is in the epoch of the session."""


def _since(at: Any) -> Any:
    """Seconds, by the store's clock."""
    return cast(extract("epoch", func.clock_timestamp() - at), Double)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    id: str
    campaign: CampaignId
    rollout: RolloutId
    task: TaskId
    epoch: int
    life: int
    offered_at: datetime
    taken_by: str | None
    taken_at: datetime | None
    deadline: datetime | None
    ending: SessionEnd | None
    result_hash: str | None
    note: str | None
    ended_at: datetime | None
    lives: bool
    """Its rollout has not ended, and is in the session's epoch."""
    taken_s: float | None
    """Since it was taken, by the store's clock."""
    silent_s: float | None
    """Since its agent was heard of."""

    @property
    def is_open(self) -> bool:
        return self.lives and self.ending is None


_COLUMNS = (
    _ROW.id,
    _ROW.campaign_id,
    _ROW.rollout_id,
    RolloutRow.task_id,
    _ROW.epoch,
    _ROW.life,
    _ROW.offered_at,
    _ROW.taken_by,
    _ROW.taken_at,
    _ROW.deadline,
    _ROW.ending,
    _ROW.result_hash,
    _ROW.note,
    _ROW.ended_at,
    LIVES,
    _since(_ROW.taken_at),
    _since(_ROW.seen_at),
)


def selected(*conditions: ColumnElement[bool]) -> Select[Any]:
    """The statement that reads these sessions."""
    return select(*_COLUMNS).join(RolloutRow, RolloutRow.id == _ROW.rollout_id).where(*conditions)


async def with_key(db: Database, ident: str, key: str) -> SessionRecord | None:
    """The session that this key opens; None: unknown, or another key."""
    statement = (
        selected(_ROW.id == ident)
        .add_columns(ProgramLifeRow.key_hash)
        .join(
            ProgramLifeRow,
            and_(
                ProgramLifeRow.rollout_id == _ROW.rollout_id,
                ProgramLifeRow.epoch == _ROW.epoch,
                ProgramLifeRow.life == _ROW.life,
            ),
        )
    )
    async with db.statement() as connection:
        row = (await connection.execute(statement)).one_or_none()
    if row is None or not hmac.compare_digest(row.key_hash, program_lives.digest(key)):
        return None
    return SessionRecord(*row[:-1])


async def read(db: Database, rollout: RolloutId, epoch: int, life: int) -> SessionRecord:
    """The session's record. Raises Fenced when it was not offered."""
    async with db.statement() as connection:
        row = (
            await connection.execute(selected(_ROW.id == session_id(rollout, epoch, life)))
        ).one_or_none()
    if row is None:
        raise Fenced(f"rollout {rollout}: life {life} of epoch {epoch} was never offered")
    return record_of(row)


async def of_rollout(db: Database, rollout: RolloutId, epoch: int) -> list[SessionRecord]:
    """Sessions of the rollout, in the order of lives."""
    statement = selected(_ROW.rollout_id == rollout, _ROW.epoch == epoch).order_by(_ROW.life)
    async with db.statement() as connection:
        return [record_of(row) for row in await connection.execute(statement)]


async def heard(db: Database, ident: str) -> bool:
    """Record that its agent lives. False: the session has ended."""
    async with db.statement() as connection:
        updated = await connection.scalar(
            update(_ROW)
            .where(_ROW.id == ident, _ROW.ended_at.is_(None))
            .values(seen_at=func.now())
            .returning(_ROW.id)
        )
    return updated is not None


async def waiting(db: Database, campaign: CampaignId) -> tuple[int, datetime | None]:
    """Sessions that are offered and not taken, and since when the oldest is."""
    statement = (
        select(func.count(), func.min(_ROW.offered_at))
        .join(RolloutRow, RolloutRow.id == _ROW.rollout_id)
        .where(*is_free(campaign))
    )
    async with db.statement() as connection:
        count, since = (await connection.execute(statement)).one()
    return count, since


def is_free(campaign: CampaignId) -> tuple[ColumnElement[bool], ...]:
    """The conditions of a session that can be taken."""
    return (
        _ROW.campaign_id == campaign,
        _ROW.taken_at.is_(None),
        _ROW.ended_at.is_(None),
        LIVES,
    )


def record_of(row: Row[Any]) -> SessionRecord:
    """The record of one row of `selected`."""
    return SessionRecord(*row)
