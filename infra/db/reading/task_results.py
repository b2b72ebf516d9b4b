"""Results of tasks: by policy version in one run, and over all runs.

Read only. Used by the viewer.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.reading.rollout_pages import LISTED, ListedRollout
from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE, RESOLVED, SCORED
from mainspring.ids import CampaignId, TaskId
from mainspring.status import CampaignKind


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Rollouts of one task under one policy version."""

    num_scored: int
    num_resolved: int
    num_unscored: int
    """Masked, or not ended."""


@dataclass(frozen=True, slots=True)
class TaskOfRun:
    """One task in one run, over its versions."""

    campaign: CampaignId
    kind: CampaignKind
    versions: Mapping[int, TaskScore]


_COUNTS = (
    func.count().filter(SCORED),
    func.count().filter(RESOLVED),
    func.count().filter(~SCORED),
)


async def matrix(
    connection: AsyncConnection, campaign: CampaignId, split: str | None
) -> dict[TaskId, dict[int, TaskScore]]:
    """Results by task and policy version. `split`: one of the run's; None: all."""
    chosen = [RolloutRow.campaign_id == campaign]
    if split is not None:
        chosen.append(GroupRow.split == split)
    rows = await connection.execute(
        select(RolloutRow.task_id, GroupRow.policy_version, *_COUNTS)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(*chosen)
        .group_by(RolloutRow.task_id, GroupRow.policy_version)
        .order_by(RolloutRow.task_id, GroupRow.policy_version)
    )
    found: defaultdict[TaskId, dict[int, TaskScore]] = defaultdict(dict)
    for task, version, *counts in rows:
        found[TaskId(task)][version] = TaskScore(*counts)
    return dict(found)


async def splits(connection: AsyncConnection, campaign: CampaignId) -> list[str]:
    """Splits that the run's groups are of."""
    return sorted(
        await connection.scalars(
            select(GroupRow.split).distinct().where(GroupRow.campaign_id == campaign)
        )
    )


async def of_task(connection: AsyncConnection, task: TaskId) -> list[TaskOfRun]:
    """Results of one task in every run that played it, the newest run first."""
    rows = await connection.execute(
        select(CampaignRow.id, CampaignRow.kind, GroupRow.policy_version, *_COUNTS)
        .select_from(RolloutRow)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .join(CampaignRow, CampaignRow.id == RolloutRow.campaign_id)
        .where(RolloutRow.task_id == task)
        .group_by(CampaignRow.id, GroupRow.policy_version)
        .order_by(CampaignRow.created_at.desc(), CampaignRow.id, GroupRow.policy_version)
    )
    runs: dict[str, tuple[CampaignKind, dict[int, TaskScore]]] = {}
    for campaign, kind, version, *counts in rows:
        runs.setdefault(campaign, (kind, {}))[1][version] = TaskScore(*counts)
    return [TaskOfRun(CampaignId(id), kind, found) for id, (kind, found) in runs.items()]


async def ends_of_task(connection: AsyncConnection, task: TaskId) -> dict[str, int]:
    """Ends of its rollouts, by stop reason."""
    rows = await connection.execute(
        select(RolloutRow.stop_reason, func.count())
        .where(RolloutRow.task_id == task, DONE)
        .group_by(RolloutRow.stop_reason)
    )
    return {reason.value: num for reason, num in rows if reason is not None}


async def rollouts_of_task(
    connection: AsyncConnection, task: TaskId, limit: int
) -> list[ListedRollout]:
    """Its rollouts in all runs, the newest first."""
    rows = await connection.execute(
        select(*LISTED)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .where(RolloutRow.task_id == task)
        .order_by(RolloutRow.created_at.desc(), RolloutRow.id)
        .limit(limit)
    )
    return [ListedRollout(*row) for row in rows]
