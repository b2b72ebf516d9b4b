"""Deviations that keep a reproducible campaign from being repeated, found in what is stored.

Invariant: nothing is written for it, so a campaign cannot forget a deviation that a crash cut off.
Read by the fingerprint of a campaign and by the page that shows it.
"""

from sqlalchemy import ColumnElement, Select, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.models import ExecutionRow, GroupRow, RolloutRow
from infra.db.training import draws
from mainspring.algorithms.schedule import MAX_REPEATS, Batches
from mainspring.artifacts.reproducibility import Cause, Deviation
from mainspring.ids import CampaignId
from mainspring.status import GroupKind, GroupStatus, StopReason

_TRAINED = GroupRow.status.in_((GroupStatus.READY, GroupStatus.CONSUMED))


async def read(
    connection: AsyncConnection, campaign: CampaignId, batches: Batches
) -> list[Deviation]:
    """Deviations from the schedule, ordered by step, then group and rollout."""
    step = draws.place_of(batches) // batches.groups_per_step + 1
    deviations = [
        Deviation(step=row.step, cause=cause, group=row.group, rollout=row.rollout)
        for cause, statement in _of_rollouts(campaign, step)
        for row in await connection.execute(statement)
    ]
    for row in await connection.execute(_discarded(campaign, step)):
        deviations.append(Deviation(step=row.step, cause=Cause.DISCARDED, group=row.group))
    for row in await connection.execute(_replaced(campaign, step)):
        deviations.append(Deviation(step=row.step, cause=Cause.REPLACED, group=row.group))
    return sorted(
        deviations,
        key=lambda deviation: (
            deviation.step,
            deviation.group,
            deviation.rollout or "",
            deviation.cause,
        ),
    )


def _of_rollouts(
    campaign: CampaignId, step: ColumnElement[int]
) -> list[tuple[Cause, Select[tuple[int, str, str]]]]:
    base = (
        select(step.label("step"), GroupRow.id.label("group"), RolloutRow.id.label("rollout"))
        .join(RolloutRow, RolloutRow.group_id == GroupRow.id)
        .where(*_training(campaign), _TRAINED)
    )
    timed_out = (
        select(ExecutionRow.rollout_id)
        .where(
            ExecutionRow.rollout_id == RolloutRow.id,
            ExecutionRow.epoch == RolloutRow.epoch,
            ExecutionRow.timed_out.is_(True),
        )
        .exists()
    )
    return [
        (Cause.MASKED, base.where(RolloutRow.reward.is_(None))),
        (Cause.WALL_TIME, base.where(RolloutRow.stop_reason == StopReason.WALL_TIME)),
        (Cause.COMMAND_TIMEOUT, base.where(timed_out)),
        # Each run of a rollout begins an epoch, and each divergence within a run another one.
        (Cause.DIVERGED, base.where(RolloutRow.epoch > func.cardinality(RolloutRow.past_runs))),
    ]


def _discarded(campaign: CampaignId, step: ColumnElement[int]) -> Select[tuple[int, str]]:
    return select(step.label("step"), GroupRow.id.label("group")).where(
        *_training(campaign), GroupRow.note.is_not(None)
    )


def _replaced(campaign: CampaignId, step: ColumnElement[int]) -> Select[tuple[int, str]]:
    """The last masked group of each draw that was masked once too often."""
    masked = and_(GroupRow.status == GroupStatus.MASKED, GroupRow.note.is_(None))
    return (
        select(func.min(step).label("step"), func.max(GroupRow.id).label("group"))
        .where(*_training(campaign), masked)
        .group_by(GroupRow.draw)
        .having(func.count() > MAX_REPEATS)
    )


def _training(campaign: CampaignId) -> tuple[ColumnElement[bool], ...]:
    return (
        GroupRow.campaign_id == campaign,
        GroupRow.kind == GroupKind.TRAIN,
        GroupRow.draw.is_not(None),
    )
