"""Receipts of answers to programs: which ones a life had whole, so that asking again is new.

Invariants: an answer that a gateway wrote is noted only under the key that the life has; what may
have been on its way when connections were cut is in doubt, and told again. Written by gateways and
by `program_lives`; read by `model_requests` and where programs are run.
"""

from sqlalchemy import exists, func, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import aliased

from infra.db.database import Database
from infra.db.tables.models import CallRow
from infra.db.tables.program_rows import ModelRequestRow, ProgramLifeRow
from mainspring.ids import RolloutId
from mainspring.programs.record import BranchKind, RequestState

_ROW, _LIFE = ModelRequestRow, ProgramLifeRow


async def delivered(
    db: Database,
    rollout: RolloutId,
    epoch: int,
    number: int,
    life: int,
    key_sha256: str | None = None,
) -> None:
    """Record that the life had the whole answer. `key_sha256`: of the key it asked with; nothing is
    noted when it has another one by now, as its connections were cut then."""
    of_life = _LIFE.rollout_id == rollout, _LIFE.epoch == epoch, _LIFE.life == life
    by_its_key = select(_LIFE.life).where(*of_life, _LIFE.key_hash == key_sha256).exists()
    async with db.statement() as connection:
        await connection.execute(
            update(_ROW)
            .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch, _ROW.number == number)
            .where(true() if key_sha256 is None else by_its_key)
            .values(delivered_life=func.greatest(_ROW.delivered_life, life))
        )


async def doubt(connection: AsyncConnection, rollout: RolloutId, epoch: int, life: int) -> None:
    """Count answers that this life was sent as not had, but those that it continued, or asked the
    same after. A gateway knows that the node has an answer; a node that died may not have passed it
    on, and its program asks the same again."""
    row, later = ModelRequestRow, aliased(ModelRequestRow)
    continued = exists().where(
        CallRow.rollout_id == row.rollout_id,
        CallRow.epoch == row.epoch,
        CallRow.parent == row.number,
    )
    asked_after = exists().where(
        later.rollout_id == row.rollout_id,
        later.epoch == row.epoch,
        later.key == row.key,
        later.occurrence > row.occurrence,
    )
    await connection.execute(
        update(row)
        .where(row.rollout_id == rollout, row.epoch == epoch, row.delivered_life == life)
        .where(~continued, ~asked_after)
        .values(delivered_life=None)
    )


async def is_owed(db: Database, rollout: RolloutId, epoch: int, life: int) -> bool:
    """Whether the life has not had the answer to its last request whole, or there is none yet. One
    that was refused was told so; titles and the like are no matter of the agent."""
    row = ModelRequestRow
    last = (
        select(row.state, row.delivered_life)
        .where(row.rollout_id == rollout, row.epoch == epoch, row.life == life)
        .where(row.kind != BranchKind.SIDE)
        .order_by(row.number.desc())
        .limit(1)
    )
    async with db.statement() as connection:
        newest = (await connection.execute(last)).one_or_none()
    if newest is None or newest.state is RequestState.REFUSED:
        return False
    return newest.delivered_life != life
