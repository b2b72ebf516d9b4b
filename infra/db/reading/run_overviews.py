"""Runs at a glance: rewards of their steps, their newest groups as rows of cells, who is where.

Read only. Used by the viewer's home page, and by its pages of runs, groups and steps.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.reading.rollout_pages import LISTED, ListedRollout
from infra.db.tables.event_rows import EventRow
from infra.db.tables.models import GroupRow, RolloutRow, StepGroupRow, StepRow
from infra.db.tables.rollout_ends import DONE
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId
from mainspring.status import (
    GroupKind,
    GroupStatus,
    RolloutPhase,
    Sampling,
    StepStatus,
)


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group with its rollouts."""

    id: GroupId
    kind: GroupKind
    task: TaskId | None
    """None: it spans tasks."""
    policy_version: int
    status: GroupStatus
    split: str
    sampling: Sampling
    note: str | None
    created_at: datetime
    finished_at: datetime | None
    step: int | None
    """The step of its campaign that trains on it."""
    rollouts: Sequence[ListedRollout]
    """In sample order."""


async def rewards(
    connection: AsyncConnection, campaigns: Sequence[CampaignId]
) -> dict[CampaignId, list[float | None]]:
    """Mean reward of each finished step, by campaign."""
    rows = await connection.execute(
        select(StepRow.campaign_id, StepRow.metrics["reward_mean"].as_float())
        .where(StepRow.campaign_id.in_(campaigns), StepRow.status == StepStatus.DONE)
        .order_by(StepRow.campaign_id, StepRow.step)
    )
    by_campaign: defaultdict[CampaignId, list[float | None]] = defaultdict(list)
    for campaign, reward in rows:
        by_campaign[CampaignId(campaign)].append(reward)
    return dict(by_campaign)


async def phases(connection: AsyncConnection, campaign: CampaignId) -> dict[RolloutPhase, int]:
    """Rollouts that have not ended, by phase."""
    rows = await connection.execute(
        select(RolloutRow.phase, func.count())
        .where(RolloutRow.campaign_id == campaign, ~DONE)
        .group_by(RolloutRow.phase)
    )
    counts = dict(rows.tuples().all())
    return {phase: counts[phase] for phase in RolloutPhase if phase in counts}


async def oldest_playing(
    connection: AsyncConnection, campaign: CampaignId
) -> tuple[RolloutId, datetime] | None:
    """The rollout that has played for the longest, and when it began."""
    row = (
        await connection.execute(
            select(RolloutRow.id, RolloutRow.started_at)
            .where(RolloutRow.campaign_id == campaign, ~DONE, RolloutRow.started_at.is_not(None))
            .order_by(RolloutRow.started_at)
            .limit(1)
        )
    ).one_or_none()
    return None if row is None else (RolloutId(row[0]), row[1])


async def newest_groups(
    connection: AsyncConnection, campaign: CampaignId, limit: int
) -> list[GroupLine]:
    """The groups that were made last, the newest first."""
    chosen = await connection.scalars(
        select(GroupRow.id)
        .where(GroupRow.campaign_id == campaign)
        .order_by(GroupRow.created_at.desc(), GroupRow.id.desc())
        .limit(limit)
    )
    lines = {line.id: line for line in await _lines(connection, list(chosen.all()))}
    return sorted(lines.values(), key=lambda line: (line.created_at, line.id), reverse=True)


async def groups_of_step(
    connection: AsyncConnection, campaign: CampaignId, step: int
) -> list[GroupLine]:
    """The groups of a step, in batch order."""
    ids = list(
        await connection.scalars(
            select(StepGroupRow.group_id)
            .where(StepGroupRow.campaign_id == campaign, StepGroupRow.step == step)
            .order_by(StepGroupRow.position)
        )
    )
    lines = {line.id: line for line in await _lines(connection, ids)}
    return [lines[GroupId(id)] for id in ids if id in lines]


async def group(connection: AsyncConnection, id: GroupId) -> GroupLine | None:
    """The group with its rollouts; None when it is not stored."""
    return next(iter(await _lines(connection, [id])), None)


async def group_names(connection: AsyncConnection, campaign: CampaignId, limit: int) -> list[str]:
    """The newest groups of a run."""
    return list(
        await connection.scalars(
            select(GroupRow.id)
            .where(GroupRow.campaign_id == campaign)
            .order_by(GroupRow.created_at.desc(), GroupRow.id.desc())
            .limit(limit)
        )
    )


async def _lines(connection: AsyncConnection, ids: Sequence[str]) -> list[GroupLine]:
    rows = await connection.execute(
        select(*LISTED)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(RolloutRow.group_id.in_(ids))
        .order_by(RolloutRow.group_id, RolloutRow.sample_index)
    )
    rollouts: defaultdict[str, list[ListedRollout]] = defaultdict(list)
    for row in rows:
        listed = ListedRollout(*row)
        rollouts[listed.group].append(listed)
    in_step = (
        select(StepGroupRow.step)
        .where(
            StepGroupRow.group_id == GroupRow.id,
            StepGroupRow.campaign_id == GroupRow.campaign_id,
        )
        .scalar_subquery()
    )
    groups = await connection.execute(
        select(
            GroupRow.id,
            GroupRow.kind,
            GroupRow.task_id,
            GroupRow.policy_version,
            GroupRow.status,
            GroupRow.split,
            GroupRow.sampling,
            GroupRow.note,
            GroupRow.created_at,
            GroupRow.finished_at,
            in_step,
        ).where(GroupRow.id.in_(ids))
    )
    return [GroupLine(*row, rollouts=rollouts[row[0]]) for row in groups]


async def changed_at(connection: AsyncConnection, campaign: CampaignId) -> str:
    """A word that differs whenever a page about the campaign may: newest ends and sizes."""
    ended = await connection.scalar(
        select(func.max(RolloutRow.finished_at)).where(RolloutRow.campaign_id == campaign)
    )
    steps = await connection.scalar(
        select(func.count()).where(StepRow.campaign_id == campaign).select_from(StepRow)
    )
    done = await connection.scalar(
        select(func.max(StepRow.finished_at)).where(StepRow.campaign_id == campaign)
    )
    made = await connection.scalar(
        select(func.max(GroupRow.created_at)).where(GroupRow.campaign_id == campaign)
    )
    happened = await connection.scalar(
        select(func.max(EventRow.last_at)).where(EventRow.campaign_id == campaign)
    )
    playing = await phases(connection, campaign)
    counted = ".".join(f"{phase.value}{num}" for phase, num in playing.items())
    stamps = (f"{at:%Y%m%d%H%M%S%f}" if at else "0" for at in (ended, done, made, happened))
    return "-".join((*stamps, str(steps), counted))
