"""Finding rollouts of a campaign: by how they ended, what they worked on, when they were trained.

Read only. `find` gives one page and the number of all that match; used by the command line and by
what looks for the rollouts that a campaign waits for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, exists, func, select
from sqlalchemy.sql.elements import UnaryExpression

from infra.db.database import Database
from infra.db.rollouts.labels import NAMES, has_label
from infra.db.tables.models import GroupRow, RolloutRow, StepGroupRow
from infra.db.tables.rollout_ends import DONE, MASKED
from mainspring.ids import (
    CampaignId,
    GroupId,
    RolloutId,
    TaskId,
    evaluation_workflow,
    group_workflow,
    rollout_workflow,
)
from mainspring.status import (
    GroupKind,
    GroupStatus,
    Player,
    RolloutPhase,
    StopReason,
    Verdict,
)
from mainspring.trajectories.rollout_filter import Condition, Field, Op

_SPENT_S = func.extract("epoch", RolloutRow.finished_at - RolloutRow.started_at)
COLUMNS = (
    RolloutRow.id,
    RolloutRow.task_id,
    RolloutRow.sample_index,
    RolloutRow.player,
    RolloutRow.phase,
    RolloutRow.epoch,
    RolloutRow.stop_reason,
    RolloutRow.verdict,
    RolloutRow.reward,
    RolloutRow.num_turns,
    RolloutRow.suspicions,
    RolloutRow.fault,
    RolloutRow.started_at,
    RolloutRow.finished_at,
    GroupRow.split,
    GroupRow.policy_version,
    NAMES.label("labels"),
)
"""The fields of a Found, in their order."""


_FIELDS: dict[Field, ColumnElement[Any]] = {
    Field.VERDICT: cast(RolloutRow.verdict, Text),
    Field.STOP: cast(RolloutRow.stop_reason, Text),
    Field.FAULT: cast(RolloutRow.fault, Text),
    Field.SPLIT: cast(GroupRow.split, Text),
    Field.TASK: cast(RolloutRow.task_id, Text),
    Field.VERSION: cast(GroupRow.policy_version, Text),
    Field.STEP: cast(
        select(StepGroupRow.step)
        .where(
            StepGroupRow.group_id == RolloutRow.group_id,
            StepGroupRow.campaign_id == RolloutRow.campaign_id,
        )
        .scalar_subquery(),
        Text,
    ),
    Field.GROUP: cast(RolloutRow.group_id, Text),
}


class Order(StrEnum):
    NEWEST = "newest"
    """The newest group first."""
    OLDEST = "oldest"
    """The oldest group first."""
    TURNS = "turns"
    """Most turns first."""
    REWARD = "reward"
    """Highest reward first."""
    SECONDS = "seconds"
    """Longest first."""


_ORDERS: dict[Order, UnaryExpression[Any]] = {
    Order.NEWEST: RolloutRow.created_at.desc(),
    Order.OLDEST: RolloutRow.created_at.asc(),
    Order.TURNS: RolloutRow.num_turns.desc(),
    Order.REWARD: RolloutRow.reward.desc().nulls_last(),
    Order.SECONDS: _SPENT_S.desc().nulls_last(),
}


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Every condition that is given must hold."""

    failed: bool = False
    """Graded and not resolved."""
    masked: bool = False
    """Ended without a verdict that counts."""
    suspicious: bool = False
    verdict: Verdict | None = None
    stop: StopReason | None = None
    task: str | None = None
    """Part of the task's id."""
    split: str | None = None
    version: int | None = None
    """Policy version of its group."""
    step: int | None = None
    """The step that was trained on it."""
    fault: str | None = None
    """Part of the fault's text."""
    min_turns: int | None = None
    max_turns: int | None = None
    label: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    id: RolloutId
    task: TaskId
    sample_index: int
    player: Player
    phase: RolloutPhase
    epoch: int
    stop_reason: StopReason | None
    verdict: Verdict | None
    reward: float | None
    num_turns: int
    suspicions: list[str]
    fault: str | None
    started_at: datetime | None
    finished_at: datetime | None
    split: str
    policy_version: int
    labels: list[str]
    """Those that people gave to its epoch."""

    @property
    def spent_s(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()


async def find(
    db: Database,
    campaign: CampaignId,
    query: RolloutQuery,
    *,
    order: Order = Order.NEWEST,
    limit: int | None = None,
) -> tuple[list[Found], int]:
    """Rollouts that match, the first `limit` in this order, and how many match."""
    conditions = [RolloutRow.campaign_id == campaign, *_conditions(campaign, query)]
    joined = RolloutRow.group_id == GroupRow.id
    async with db.transaction() as connection:
        total = await connection.scalar(
            select(func.count()).select_from(RolloutRow).join(GroupRow, joined).where(*conditions)
        )
        rows = await connection.execute(
            select(*COLUMNS)
            .join(GroupRow, joined)
            .where(*conditions)
            .order_by(_ORDERS[order], RolloutRow.group_id, RolloutRow.sample_index)
            .limit(limit)
        )
        return [Found(*row) for row in rows], total or 0


async def splits_and_tasks(db: Database, campaign: CampaignId) -> tuple[list[str], list[str]]:
    """Names that a filter of this campaign can match."""
    async with db.transaction() as connection:
        of_campaign = RolloutRow.campaign_id == campaign
        splits = await connection.scalars(
            select(GroupRow.split).distinct().where(GroupRow.campaign_id == campaign)
        )
        tasks = await connection.scalars(select(RolloutRow.task_id).distinct().where(of_campaign))
        return sorted(splits), sorted(tasks)


async def oldest_running(db: Database, campaign: CampaignId, limit: int) -> list[str]:
    """Workflows of the rollouts that began first and have not ended; while none has begun, of the
    oldest groups."""
    async with db.transaction() as connection:
        rollouts = list(
            await connection.scalars(
                select(RolloutRow.id)
                .where(
                    RolloutRow.campaign_id == campaign, ~DONE, RolloutRow.started_at.is_not(None)
                )
                .order_by(RolloutRow.started_at, RolloutRow.id)
                .limit(limit)
            )
        )
        if rollouts:
            return [rollout_workflow(RolloutId(rollout)) for rollout in rollouts]
        rows = await connection.execute(
            select(GroupRow.id, GroupRow.kind)
            .where(GroupRow.campaign_id == campaign, GroupRow.status == GroupStatus.RUNNING)
            .order_by(GroupRow.created_at, GroupRow.id)
            .limit(limit)
        )
        return [
            (group_workflow if kind is GroupKind.TRAIN else evaluation_workflow)(GroupId(group))
            for group, kind in rows
        ]


def _conditions(campaign: CampaignId, query: RolloutQuery) -> Sequence[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.failed:
        conditions += [DONE, ~MASKED, RolloutRow.verdict != Verdict.RESOLVED]
    if query.masked:
        conditions.append(MASKED)
    if query.suspicious:
        conditions.append(func.cardinality(RolloutRow.suspicions) > 0)
    if query.verdict is not None:
        conditions.append(RolloutRow.verdict == query.verdict)
    if query.stop is not None:
        conditions.append(RolloutRow.stop_reason == query.stop)
    if query.task is not None:
        conditions.append(RolloutRow.task_id.contains(query.task, autoescape=True))
    if query.split is not None:
        conditions.append(GroupRow.split == query.split)
    if query.version is not None:
        conditions.append(GroupRow.policy_version == query.version)
    if query.step is not None:
        conditions.append(
            exists().where(
                StepGroupRow.group_id == RolloutRow.group_id,
                StepGroupRow.campaign_id == campaign,
                StepGroupRow.step == query.step,
            )
        )
    if query.fault is not None:
        conditions.append(RolloutRow.fault.icontains(query.fault, autoescape=True))
    if query.min_turns is not None:
        conditions.append(RolloutRow.num_turns >= query.min_turns)
    if query.max_turns is not None:
        conditions.append(RolloutRow.num_turns <= query.max_turns)
    if query.label is not None:
        conditions.append(has_label(query.label))
    return [*conditions, *map(_holds, query.conditions)]


def _holds(condition: Condition) -> ColumnElement[bool]:
    column = _FIELDS[condition.field]
    match condition.op:
        case Op.EQUALS:
            return column == condition.value
        case Op.DIFFERS:
            return column.is_distinct_from(condition.value)
        case Op.CONTAINS:
            return column.icontains(condition.value, autoescape=True)
        case Op.IS_NULL:
            return column.is_(None)
        case Op.IS_NOT_NULL:
            return column.is_not(None)
