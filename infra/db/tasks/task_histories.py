"""Histories of a campaign's tasks, for a curriculum that asks for them."""

from collections.abc import Sequence

from sqlalchemy import func, select

from infra.db.database import Database
from infra.db.tables.models import GroupRow, RolloutRow
from infra.db.tables.rollout_ends import RESOLVED, SCORED
from mainspring.curricula.protocol import TaskHistory
from mainspring.ids import CampaignId, TaskId
from mainspring.status import GroupKind, GroupStatus

_KNOWN = (GroupStatus.READY, GroupStatus.CONSUMED, GroupStatus.FLAT, GroupStatus.MASKED)
"""Groups that tell of a task; of a masked one the rollouts that were scored count."""


async def read(
    db: Database, campaign: CampaignId, ids: Sequence[TaskId], recent_groups: int
) -> list[TaskHistory]:
    """Histories [N] of the tasks `ids`, each over its newest `recent_groups` training groups that
    ended."""
    of_campaign = (GroupRow.campaign_id == campaign) & (GroupRow.kind == GroupKind.TRAIN)
    age = func.row_number().over(partition_by=GroupRow.task_id, order_by=GroupRow.index.desc())
    ended = (
        select(GroupRow.id, GroupRow.task_id, age.label("age"))
        .where(of_campaign, GroupRow.status.in_(_KNOWN))
        .subquery()
    )
    scores = (
        select(
            ended.c.task_id,
            func.count().filter(SCORED),
            func.count().filter(RESOLVED),
        )
        .join(RolloutRow, RolloutRow.group_id == ended.c.id)
        .where(ended.c.age <= recent_groups)
        .group_by(ended.c.task_id)
    )
    running = (
        select(GroupRow.task_id, func.count())
        .where(of_campaign, GroupRow.status == GroupStatus.RUNNING)
        .group_by(GroupRow.task_id)
    )
    async with db.snapshot() as connection:
        scored = {task: (num, solved) for task, num, solved in await connection.execute(scores)}
        in_flight = dict((await connection.execute(running)).tuples().all())
    return [TaskHistory(*scored.get(id, (0, 0)), in_flight.get(id, 0)) for id in ids]
