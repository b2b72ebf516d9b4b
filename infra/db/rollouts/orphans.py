"""Orphans: what the store believes is under way, so that the sweep can ask whether it is.

Invariants: a rollout is ended here only while the run and epoch that were looked at still own it,
so a run that takes it over meanwhile keeps it; an ended one stays ended: the fence refuses whatever
the dead run's activities still want to write. Imported by the sweep alone.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, literal_column, null, select, update

from infra.db.database import Database
from infra.db.rollouts import leftovers
from infra.db.tables.models import CallRow, GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE
from mainspring.ids import CampaignId, GroupId, RolloutId
from mainspring.status import GroupKind, GroupStatus, RolloutPhase, StopReason

# A word in the statement, not a parameter: only so is the index ix_rollouts_playing used, and the
# sweep of each minute must not read rollouts that ended weeks ago.
_PLAYING = (RolloutRow.phase != literal_column("'done'")) & RolloutRow.run_id.is_not(None)
_CUT = (StopReason.CANCELLED, StopReason.TERMINATED)


@dataclass(frozen=True, slots=True)
class Playing:
    """A claimed rollout that has not ended, and the life it was seen in."""

    rollout: RolloutId
    epoch: int
    run_id: str


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A training group that is not closed."""

    group: GroupId
    campaign: CampaignId
    index: int
    num_playing: int
    is_complete: bool
    """Every rollout came to an end of its own; only the closing is missing."""


async def playing_rollouts(db: Database, min_age_s: float) -> list[Playing]:
    """Rollouts that play, first claimed at least `min_age_s` ago. Those never claimed hold nothing
    and end with their group."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(RolloutRow.id, RolloutRow.epoch, RolloutRow.run_id).where(
                _PLAYING, RolloutRow.started_at <= func.now() - timedelta(seconds=min_age_s)
            )
        )
        return [Playing(*row) for row in rows]


async def end_rollout(db: Database, seen: Playing, fault: str) -> bool:
    """End a rollout unscored. False when it ended or was taken over since it was seen."""
    num_turns = (
        select(func.count())
        .where(CallRow.rollout_id == seen.rollout, CallRow.epoch == seen.epoch)
        .scalar_subquery()
    )
    async with db.transaction() as connection:
        ended = await connection.scalar(
            update(RolloutRow)
            .where(
                RolloutRow.id == seen.rollout,
                RolloutRow.epoch == seen.epoch,
                RolloutRow.run_id == seen.run_id,
                ~DONE,
            )
            .values(
                phase=RolloutPhase.DONE,
                stop_reason=StopReason.TERMINATED,
                verdict=null(),
                reward=null(),
                fault=fault,
                num_turns=num_turns,
                finished_at=func.now(),
            )
            .returning(RolloutRow.id)
        )
        await leftovers.drop_of_ended(connection, RolloutRow.id == seen.rollout)
    return ended is not None


async def open_groups(db: Database, min_age_s: float) -> list[OpenGroup]:
    """Open groups, made at least `min_age_s` ago, oldest first."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                GroupRow.id,
                GroupRow.campaign_id,
                GroupRow.index,
                func.count().filter(_PLAYING),
                func.bool_and(DONE & RolloutRow.stop_reason.not_in(_CUT)),
            )
            .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
            .where(
                GroupRow.kind == GroupKind.TRAIN,
                GroupRow.status == GroupStatus.RUNNING,
                GroupRow.created_at <= func.now() - timedelta(seconds=min_age_s),
            )
            .group_by(GroupRow.id)
            .order_by(GroupRow.created_at, GroupRow.id)
        )
        return [OpenGroup(*row) for row in rows]
