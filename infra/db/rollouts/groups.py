"""Groups: the rollouts of one task (training) or of a split (evaluation, runs), made and closed
whole.

Invariants: a group and its rollouts appear together; a closed training group never reopens and its
rollouts never change again, so a batch always reads the same. `runs` resumes the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.rollouts import leftovers
from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow
from infra.db.tables.rollout_ends import DONE
from mainspring.algorithms.closing import closing_status
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.stored import read_row
from mainspring.config.trainer import TrainerConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, GroupId, RolloutId, TaskId
from mainspring.status import (
    GroupKind,
    GroupStatus,
    Player,
    RolloutPhase,
    Sampling,
    StopReason,
    Verdict,
)

_COLUMNS = (
    GroupRow.id,
    GroupRow.campaign_id,
    GroupRow.kind,
    GroupRow.index,
    GroupRow.task_id,
    GroupRow.policy_version,
    GroupRow.size,
    GroupRow.status,
    GroupRow.split,
    GroupRow.finished_at,
    GroupRow.note,
)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    id: GroupId
    campaign: CampaignId
    kind: GroupKind
    index: int | None
    """The group's number among the training groups, or the parts of a run; None for others."""
    task: TaskId | None
    """None for evaluations, which span tasks."""
    policy_version: int
    """The newest version when the group was admitted."""
    size: int
    status: GroupStatus
    split: str
    finished_at: datetime | None
    note: str | None
    """Why an operator discarded it."""


@dataclass(frozen=True, slots=True)
class NewRollout:
    id: RolloutId
    task: TaskId
    sample_index: int
    """Position in the group."""
    temperature: float
    player: Player = Player.POLICY
    source_rollout: RolloutId | None = None
    """Whose patch is graded again."""
    exploit: str | None = None
    """Name of the exploit that is tried."""
    seed: int | None = None
    """Seed of its sampling."""


@dataclass(frozen=True, slots=True)
class GroupTally:
    """Counts of the finished rollouts of a group."""

    num_resolved: int
    num_masked: int
    """Done without a reward."""
    num_scored: int
    """Done with one."""


async def create_group(
    db: Database,
    group: GroupId,
    campaign: CampaignId,
    kind: GroupKind,
    *,
    policy_version: int,
    split: str,
    rollouts: Sequence[NewRollout],
    sampling: Sampling = Sampling.SAMPLED,
    index: int | None = None,
    task: TaskId | None = None,
    draw: int | None = None,
) -> GroupRecord:
    """Store a group with its rollouts. A group that is there already is returned as it is, with the
    policy version of its first admission. Raises UsageError without rollouts."""
    if not rollouts:
        raise UsageError(f"group {group} would have no rollouts (split {split!r} is empty?)")
    row = {
        "id": group,
        "campaign_id": campaign,
        "kind": kind,
        "index": index,
        "draw": draw,
        "task_id": task,
        "policy_version": policy_version,
        "size": len(rollouts),
        "status": GroupStatus.RUNNING,
        "sampling": sampling,
        "split": split,
    }
    async with db.transaction() as connection:
        created = await connection.scalar(
            postgres_insert(GroupRow).values(row).on_conflict_do_nothing().returning(GroupRow.id)
        )
        if created is not None:
            await connection.execute(
                insert(RolloutRow),
                [
                    {
                        "id": rollout.id,
                        "group_id": group,
                        "campaign_id": campaign,
                        "task_id": rollout.task,
                        "sample_index": rollout.sample_index,
                        "temperature": rollout.temperature,
                        "seed": rollout.seed,
                        "player": rollout.player,
                        "source_rollout_id": rollout.source_rollout,
                        "exploit": rollout.exploit,
                        "phase": RolloutPhase.STARTING,
                    }
                    for rollout in rollouts
                ],
            )
        return await _get(connection, group)


async def get(db: Database, group: GroupId) -> GroupRecord:
    """The group's record. Raises UnknownId."""
    async with db.transaction() as connection:
        return await _get(connection, group)


async def list_groups(
    db: Database, campaign: CampaignId, kind: GroupKind | None = None
) -> list[GroupRecord]:
    """The campaign's groups, oldest first."""
    statement = select(*_COLUMNS).where(GroupRow.campaign_id == campaign)
    if kind is not None:
        statement = statement.where(GroupRow.kind == kind)
    async with db.transaction() as connection:
        rows = await connection.execute(statement.order_by(GroupRow.created_at, GroupRow.id))
        return [_record(row) for row in rows]


async def unfinished(db: Database, group: GroupId) -> list[int]:
    """Rollouts of an open group to play, by sample index: not ended, or cut off from outside."""
    cut = RolloutRow.stop_reason.in_((StopReason.CANCELLED, StopReason.TERMINATED))
    async with db.transaction() as connection:
        ids = await connection.scalars(
            select(RolloutRow.sample_index)
            .where(RolloutRow.group_id == group, ~DONE | cut)
            .order_by(RolloutRow.sample_index)
        )
        return list(ids)


async def finish_group(db: Database, group: GroupId, *, cancelled: bool = False) -> GroupStatus:
    """Close a group, as `closing` decides under the campaign's configuration; CANCELLED
    on request. A closed group does not change. Rollouts that have not ended are ended here, without
    a reward."""
    async with db.transaction() as connection:
        # Before any rollout: `rollouts.claim` locks in the same order.
        row = (
            await connection.execute(
                select(
                    GroupRow.status,
                    GroupRow.kind,
                    GroupRow.campaign_id,
                    CampaignRow.kind.label("campaign_kind"),
                    CampaignRow.config,
                )
                .join(CampaignRow, CampaignRow.id == GroupRow.campaign_id)
                .where(GroupRow.id == group)
                .with_for_update(key_share=True, of=GroupRow)
            )
        ).one_or_none()
        if row is None:
            raise unknown("group", group)
        if row.status is not GroupStatus.RUNNING:
            return row.status
        await connection.execute(
            update(RolloutRow)
            .where(RolloutRow.group_id == group, ~DONE)
            .values(
                phase=RolloutPhase.DONE,
                stop_reason=StopReason.CANCELLED if cancelled else StopReason.INFRA_FAULT,
                fault=None if cancelled else "its group was closed before it ended",
                finished_at=func.now(),
            )
        )
        await leftovers.drop_of_ended(connection, RolloutRow.group_id == group)
        rewards = await connection.scalars(
            select(RolloutRow.reward).where(RolloutRow.group_id == group)
        )
        status = GroupStatus.CANCELLED
        if not cancelled:
            config = read_row(row.campaign_id, row.campaign_kind, row.config)
            status = _closing(rewards.all(), row.kind, config)
        await connection.execute(
            # Not now(): a transaction that began earlier may have waited longer for its lock.
            update(GroupRow)
            .where(GroupRow.id == group)
            .values(status=status, finished_at=func.clock_timestamp())
        )
        return status


async def tally(db: Database, group: GroupId) -> GroupTally:
    """How many of the group's rollouts were resolved, masked and scored."""
    async with db.transaction() as connection:
        row = (
            await connection.execute(
                select(
                    func.count().filter(DONE, RolloutRow.verdict == Verdict.RESOLVED),
                    func.count().filter(DONE, RolloutRow.reward.is_(None)),
                    func.count().filter(DONE, RolloutRow.reward.is_not(None)),
                ).where(RolloutRow.group_id == group)
            )
        ).one()
        return GroupTally(*row)


def _closing(rewards: Sequence[float | None], kind: GroupKind, config: AnyRun) -> GroupStatus:
    # What measures is compared with nothing, so no rule of a trainer applies to it.
    trainer = config.trainer if isinstance(config, CampaignConfig) else TrainerConfig()
    return closing_status(rewards, kind, trainer)


async def _get(connection: AsyncConnection, group: GroupId) -> GroupRecord:
    row = (await connection.execute(select(*_COLUMNS).where(GroupRow.id == group))).one_or_none()
    if row is None:
        raise unknown("group", group)
    return _record(row)


def _record(row: Row[Any]) -> GroupRecord:
    return GroupRecord(*row)
