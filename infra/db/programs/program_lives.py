"""Lives of the programs that play rollouts: begun, found by their keys, ended.

Invariants: a life is of one epoch and has one key at a time, of which only the digest is stored; a
key opens nothing once a later life, another epoch or the rollout's end has come. A node that takes
a life over gives it a new key, and answers that the former one may have kept count as not had.
Written by the activity that runs programs and, for agents outside,
by `sessions`; read by the gateway.
"""

import hashlib
import secrets
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import aliased

from infra.db.database import Database
from infra.db.fence import fenced_insert, refuse_finished, refuse_older
from infra.db.programs import answer_receipts
from infra.db.tables.models import RolloutRow
from infra.db.tables.program_rows import ProgramLifeRow
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import RolloutPhase

KEY_PREFIX = "mss_"
KEY_BYTES = 32
OUTPUT_CHARS = 8000
"""Kept of what a program printed: its end."""
_COLUMNS = ["rollout_id", "epoch", "life", "key_hash"]
_BEGIN = fenced_insert(
    ProgramLifeRow,
    _COLUMNS,
    on_conflict="(rollout_id, epoch, life) DO UPDATE SET key_hash = excluded.key_hash",
    returning=["life"],
)
_BEGIN_ONCE = fenced_insert(ProgramLifeRow, _COLUMNS, returning=["life"])


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whose key it is."""

    campaign: CampaignId
    rollout: RolloutId
    epoch: int
    life: int


@dataclass(frozen=True, slots=True)
class ProgramLife:
    life: int
    returncode: int | None
    """None: it runs, or its end was not seen."""
    output: str | None
    bundle_sha256: str | None
    """None: it ran from none."""


async def begin(db: Database, rollout: RolloutId, epoch: int, life: int) -> str:
    """The key of this life, new each time. Raises Fenced."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    async with db.transaction() as connection:
        await begin_with(connection, rollout, epoch, life, key)
        await answer_receipts.doubt(connection, rollout, epoch, life)
    return key


async def begin_once(db: Database, rollout: RolloutId, epoch: int, life: int) -> str | ProgramLife:
    """The key of a life that begins now, or the life when it has begun before, which no attempt may
    take over. Raises Fenced."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    values = {"rollout_id": rollout, "epoch": epoch, "life": life, "key_hash": digest(key)}
    async with db.statement() as connection:
        if await connection.scalar(_BEGIN_ONCE, values) is not None:
            return key
        await refuse_older(connection, rollout, epoch)
    lives = [record for record in await of_rollout(db, rollout, epoch) if record.life == life]
    if not lives:
        refuse_finished(rollout)
    return lives[0]


async def begin_with(
    connection: AsyncConnection, rollout: RolloutId, epoch: int, life: int, key: str
) -> None:
    """Begin the life with this key, or give it this key. Raises Fenced."""
    values = {"rollout_id": rollout, "epoch": epoch, "life": life, "key_hash": digest(key)}
    if await connection.scalar(_BEGIN, values) is None:
        await refuse_older(connection, rollout, epoch)
        refuse_finished(rollout)


async def holder(db: Database, key: str) -> KeyHolder | None:
    """The life that the key opens; None for a key that is unknown or of a life that is over."""
    lives = aliased(ProgramLifeRow)
    later = (
        select(func.max(lives.life))
        .where(lives.rollout_id == RolloutRow.id, lives.epoch == RolloutRow.epoch)
        .correlate(RolloutRow)
    )
    statement = (
        select(RolloutRow.campaign_id, RolloutRow.id, RolloutRow.epoch, ProgramLifeRow.life)
        .join(ProgramLifeRow, ProgramLifeRow.rollout_id == RolloutRow.id)
        .where(
            ProgramLifeRow.key_hash == digest(key),
            ProgramLifeRow.epoch == RolloutRow.epoch,
            ProgramLifeRow.life == later.scalar_subquery(),
            RolloutRow.phase != RolloutPhase.DONE,
        )
    )
    async with db.statement() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else KeyHolder(*row)


async def ran_from(db: Database, rollout: RolloutId, epoch: int, life: int, sha256: str) -> None:
    """Record the bundle of a life; the first one stands."""
    async with db.statement() as connection:
        await connection.execute(
            update(ProgramLifeRow)
            .where(*_is(rollout, epoch, life), ProgramLifeRow.bundle_sha256.is_(None))
            .values(bundle_sha256=sha256)
        )


async def end(
    db: Database, rollout: RolloutId, epoch: int, life: int, returncode: int, output: str
) -> None:
    """Record how the life ended; the first end stands."""
    async with db.statement() as connection:
        await connection.execute(
            update(ProgramLifeRow)
            .where(*_is(rollout, epoch, life), ProgramLifeRow.ended_at.is_(None))
            .values(returncode=returncode, output=output[-OUTPUT_CHARS:], ended_at=func.now())
        )


async def of_rollout(db: Database, rollout: RolloutId, epoch: int) -> list[ProgramLife]:
    """Lives of the rollout, in their order."""
    statement = (
        select(
            ProgramLifeRow.life,
            ProgramLifeRow.returncode,
            ProgramLifeRow.output,
            ProgramLifeRow.bundle_sha256,
        )
        .where(ProgramLifeRow.rollout_id == rollout, ProgramLifeRow.epoch == epoch)
        .order_by(ProgramLifeRow.life)
    )
    async with db.statement() as connection:
        return [ProgramLife(*row) for row in await connection.execute(statement)]


def _is(rollout: RolloutId, epoch: int, life: int) -> tuple[ColumnElement[bool], ...]:
    row = ProgramLifeRow
    return row.rollout_id == rollout, row.epoch == epoch, row.life == life


def digest(key: str) -> str:
    """The digest that is stored of a key."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
