"""What became of answers to programs: which ones a life had whole, so that asking again is new.

Invariants: an answer that a gateway wrote is noted only under the key that the life has; what may
have been on its way when connections were cut is in doubt, and told again. Written by gateways and
by the activity that runs programs; read by `model_requests`.
"""

from sqlalchemy import func, select, true, update
from sqlalchemy.orm import aliased

from infra.db.database import Database
from infra.db.program_rows import ModelRequestRow, ProgramLifeRow
from mainspring.ids import RolloutId

_ROW, _LIFE = ModelRequestRow, ProgramLifeRow


async def delivered(
    database: Database,
    rollout: RolloutId,
    epoch: int,
    number: int,
    life: int,
    key_sha256: str | None = None,
) -> None:
    """The life had the whole answer. `key_sha256`: of the key it asked with; nothing is noted when
    it has another one by now, as its connections were cut then."""
    of_life = _LIFE.rollout_id == rollout, _LIFE.epoch == epoch, _LIFE.life == life
    by_its_key = select(_LIFE.life).where(*of_life, _LIFE.key_hash == key_sha256).exists()
    async with database.statement() as connection:
        await connection.execute(
            update(_ROW)
            .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch, _ROW.number == number)
            .where(true() if key_sha256 is None else by_its_key)
            .values(delivered_life=func.greatest(_ROW.delivered_life, life))
        )


async def doubt(database: Database, rollout: RolloutId, epoch: int, life: int) -> None:
    """After the connections of a life were cut: the newest answer to each of its requests may have
    been on its way, so what asks the same again gets that answer, and no other is sampled."""
    other = aliased(_ROW)
    newest = (
        select(func.max(other.occurrence))
        .where(
            other.rollout_id == rollout,
            other.epoch == epoch,
            other.key == _ROW.key,
            other.delivered_life == life,
        )
        .correlate(_ROW)
        .scalar_subquery()
    )
    async with database.statement() as connection:
        await connection.execute(
            update(_ROW)
            .where(_ROW.rollout_id == rollout, _ROW.epoch == epoch)
            .where(_ROW.delivered_life == life, _ROW.occurrence == newest)
            .values(delivered_life=None)
            .execution_options(synchronize_session=False)
        )
