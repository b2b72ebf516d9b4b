"""Forecast of what a node will be asked to open next, so that it can get ready.

A guess that costs nothing when it is wrong: nothing here is a promise, and rows may change while
they are read. The next groups' tasks are no guess where a campaign's order is fixed by its seed;
another curriculum has none to tell.
"""

from dataclasses import dataclass

from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.runs.campaigns import ENDS
from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow, SandboxRow
from infra.db.tables.rollout_ends import DONE
from infra.db.tasks import selections
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.curriculum import SHUFFLED
from mainspring.config.files.stored import read_row
from mainspring.curricula.shuffled import task_position
from mainspring.ids import CampaignId, NodeId, TaskId
from mainspring.status import (
    CampaignKind,
    CampaignStatus,
    GroupKind,
    SandboxPurpose,
    SandboxStatus,
)

NEXT_GROUPS = 2
"""Groups of each campaign: the next one to start and the one after it."""


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A sandbox that will be needed."""

    campaign: CampaignId
    task: TaskId
    label: str = "train"
    """Label of the task's set in the campaign: a split, or the name of a source."""


async def upcoming(db: Database, node: NodeId, limit: int) -> list[Upcoming]:
    """Sandboxes that will be needed, at most `limit`, the most urgent first: rollouts that wait
    for a sandbox, those of the next groups, and the gradings of rollouts that now run on `node`."""
    async with db.transaction() as connection:
        rollouts = await _waiting(connection, limit)
        if len(rollouts) < limit:
            rollouts += await _next_groups(connection)
        if len(rollouts) < limit:
            rollouts += await _running_on(connection, node, limit)
    return rollouts[:limit]


async def _waiting(connection: AsyncConnection, limit: int) -> list[Upcoming]:
    has_sandbox = exists().where(SandboxRow.rollout_id == RolloutRow.id)
    rows = await connection.execute(
        select(RolloutRow.campaign_id, RolloutRow.task_id, GroupRow.split)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .join(CampaignRow, CampaignRow.id == RolloutRow.campaign_id)
        .where(
            CampaignRow.status.not_in(ENDS),
            ~DONE,
            RolloutRow.run_id.is_not(None),
            ~has_sandbox,
        )
        .order_by(RolloutRow.created_at, RolloutRow.id)
        .limit(limit)
    )
    return [Upcoming(CampaignId(campaign), TaskId(task), label) for campaign, task, label in rows]


async def _next_groups(connection: AsyncConnection) -> list[Upcoming]:
    last_index = (
        select(func.max(GroupRow.index))
        .where(GroupRow.campaign_id == CampaignRow.id, GroupRow.kind == GroupKind.TRAIN)
        .scalar_subquery()
    )
    running = await connection.execute(
        select(CampaignRow.id, CampaignRow.config, last_index).where(
            CampaignRow.status == CampaignStatus.RUNNING, CampaignRow.kind == CampaignKind.TRAIN
        )
    )
    rollouts: list[Upcoming] = []
    for name, stored, last in running.all():
        config = training(read_row(name, CampaignKind.TRAIN, stored))
        first = 0 if last is None else last + 1
        for index in range(first, first + NEXT_GROUPS):
            if (coming := await _of_group(connection, config, index)) is not None:
                rollouts += [coming] * config.trainer.group_size
    return rollouts


async def _of_group(
    connection: AsyncConnection, config: CampaignConfig, index: int
) -> Upcoming | None:
    """None after the campaign's last group, and where it is not known ahead."""
    if config.curriculum.kind != SHUFFLED:
        return None
    if index >= config.trainer.num_steps * config.trainer.groups_per_step:
        return None
    label, draw = config.label_of_draw(index)
    num_tasks = await selections.size(connection, config, label)
    if num_tasks == 0:
        return None
    position = task_position(config.order_seed(label), draw, num_tasks)
    task = await selections.task_at(connection, config, label, position)
    return None if task is None else Upcoming(CampaignId(config.name), task, label)


async def _running_on(connection: AsyncConnection, node: NodeId, limit: int) -> list[Upcoming]:
    rows = await connection.execute(
        select(RolloutRow.campaign_id, RolloutRow.task_id, GroupRow.split)
        .join(GroupRow, GroupRow.id == RolloutRow.group_id)
        .join(SandboxRow, SandboxRow.rollout_id == RolloutRow.id)
        .where(
            SandboxRow.node == node,
            SandboxRow.status == SandboxStatus.OPEN,
            SandboxRow.purpose == SandboxPurpose.AGENT,
        )
        .order_by(SandboxRow.opened_at)
        .limit(limit)
    )
    return [Upcoming(CampaignId(campaign), TaskId(task), label) for campaign, task, label in rows]
