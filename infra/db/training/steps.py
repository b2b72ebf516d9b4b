"""Steps: their batch is fixed before they start and everything they change is visible at once.

Invariants (design, number 8): a step's groups never change once planned; a group is in at most one
step of a campaign (a primary key ensures it); step n makes policy version n, committed in one
transaction with the groups it consumed. All steps of a campaign that trains another one's batches
again are planned when it is stored, and consume nothing. What a batch holds is in `batches`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.runs import campaign_record
from infra.db.tables.models import CampaignRow, GroupRow, PolicyVersionRow, StepGroupRow, StepRow
from infra.db.training import draws, step_details
from infra.db.training.fingerprints import recorded
from infra.db.training.trainers import refuse_fenced
from mainspring.artifacts.fingerprint import Fingerprint
from mainspring.artifacts.stamp import Stamp
from mainspring.config.any_run import training
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId, GroupId
from mainspring.status import GroupKind, GroupStatus, StepStatus
from mainspring.training.trained_rollouts import KeptCall, StoredGap, TrainedRollout

_COLUMNS = (
    StepRow.campaign_id,
    StepRow.step,
    StepRow.status,
    StepRow.policy_version_before,
    StepRow.metrics,
)


class StepOutOfOrder(MainspringError):
    """A step was planned or committed out of turn: a bug, or rows edited by hand."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    campaign: CampaignId
    step: int
    status: StepStatus
    policy_version_before: int
    metrics: dict[str, float | None]
    """None where the number was not finite."""


async def plan_step(
    db: Database,
    campaign: CampaignId,
    step: int,
    num_groups: int,
) -> list[GroupId]:
    """Fix the batch of a step: of the ready groups those that were admitted first, whose tokens are
    the oldest; of a reproducible campaign those of the step's own places. A planned step keeps its
    groups; an empty list, and nothing planned, when fewer than `num_groups` are ready, or than a
    change asks for that counts by now. Raises StepOutOfOrder when the step before is not done."""
    async with db.transaction() as connection:
        # Two plans of one campaign take turns: the second one sees what the first one took. So do
        # a plan and a change, which counts for this step or for the next one.
        locked = await connection.scalar(
            select(CampaignRow.id).where(CampaignRow.id == campaign).with_for_update(key_share=True)
        )
        if locked is None:
            raise unknown("campaign", campaign)
        planned = await groups_of(connection, campaign, step)
        if planned:
            return planned
        record = await campaign_record.read(connection, campaign)
        assert record is not None, "its row is locked"
        if record.changes:
            num_groups = training(record.at(step)).trainer.groups_per_step
        newest = await connection.scalar(
            select(func.max(PolicyVersionRow.version)).where(
                PolicyVersionRow.campaign_id == campaign
            )
        )
        if newest != step - 1:
            raise StepOutOfOrder(
                f"campaign {campaign}: step {step} needs policy version {step - 1} to be the "
                f"newest, found {newest}"
            )
        batches = record.batches
        if batches is None:
            groups = await _admitted_first(connection, campaign, num_groups)
        else:
            groups = await draws.ready_for(connection, campaign, batches, step)
        if len(groups) < num_groups:
            return []
        key = {"campaign_id": campaign, "step": step}
        await connection.execute(
            insert(StepRow).values(
                key | {"status": StepStatus.PLANNED, "policy_version_before": step - 1}
            )
        )
        await connection.execute(
            insert(StepGroupRow),
            [key | {"group_id": id, "position": n} for n, id in enumerate(groups)],
        )
        return groups


async def commit_step(
    db: Database,
    campaign: CampaignId,
    step: int,
    *,
    metrics: Mapping[str, float | None],
    policy_path: str,
    checkpoint: str | None,
    groups: Sequence[GroupId] | None = None,
    trainer_epoch: int | None = None,
    stamp: Stamp | None = None,
    fingerprint: Fingerprint | None = None,
    rollouts: Sequence[TrainedRollout] = (),
    gaps: Sequence[StoredGap] = (),
    kept: Sequence[KeptCall] = (),
) -> StepRecord:
    """Make the step, its consumed groups and policy version `step` visible together, with what it
    did with each of its `rollouts` and its worst `gaps`, and
    the numbers of all its tokens where they are `kept`. A step that is
    done stays as the first attempt committed it. `checkpoint`: None of a version that has weights
    alone. Raises StepOutOfOrder for an unplanned step, and
    when it is planned with other `groups` by now; TrainerFenced for an older epoch (None is for
    those who are no trainer)."""
    async with db.transaction() as connection:
        if trainer_epoch is not None:
            await refuse_fenced(connection, campaign, trainer_epoch)
        status = await connection.scalar(
            select(StepRow.status)
            .where(StepRow.campaign_id == campaign, StepRow.step == step)
            .with_for_update(key_share=True)
        )
        if status is None:
            raise never_planned(campaign, step)
        if status is StepStatus.PLANNED:
            planned = await groups_of(connection, campaign, step)
            if groups is not None and list(groups) != planned:
                raise StepOutOfOrder(
                    f"campaign {campaign}: step {step} was trained on groups that were dropped"
                )
            values = {"path": policy_path, "checkpoint": checkpoint}
            await _commit(
                connection, campaign, step, metrics, values | recorded(stamp, fingerprint)
            )
            await step_details.write(connection, campaign, step, rollouts, gaps, kept)
        return await _one(connection, _of(campaign).where(StepRow.step == step))


async def get_step(db: Database, campaign: CampaignId, step: int) -> StepRecord | None:
    """The step's record; None when it was not planned."""
    async with db.transaction() as connection:
        row = (await connection.execute(_of(campaign).where(StepRow.step == step))).one_or_none()
    return None if row is None else StepRecord(*row)


async def list_steps(db: Database, campaign: CampaignId) -> list[StepRecord]:
    """All steps in order."""
    async with db.transaction() as connection:
        rows = await connection.execute(_of(campaign).order_by(StepRow.step))
        return [StepRecord(*row) for row in rows]


async def step_groups(db: Database, campaign: CampaignId, step: int) -> list[GroupId]:
    """Groups of the step, in batch order; empty when it was not planned."""
    async with db.transaction() as connection:
        return await groups_of(connection, campaign, step)


async def is_retrained(connection: AsyncConnection, campaign: CampaignId) -> bool:
    """Whether the campaign trains the batches of another one, whose groups they stay."""
    record = await campaign_record.read(connection, campaign)
    return record is not None and record.is_retrained


def never_planned(campaign: CampaignId, step: int) -> StepOutOfOrder:
    """The error for a step without a plan."""
    return StepOutOfOrder(f"campaign {campaign}: step {step} was never planned")


async def _commit(
    connection: AsyncConnection,
    campaign: CampaignId,
    step: int,
    metrics: Mapping[str, float | None],
    version: Mapping[str, Any],
) -> None:
    groups = await groups_of(connection, campaign, step)
    consumed = await connection.execute(
        update(GroupRow)
        .where(
            GroupRow.id.in_(groups),
            GroupRow.campaign_id == campaign,
            GroupRow.status == GroupStatus.READY,
        )
        .values(status=GroupStatus.CONSUMED)
    )
    if consumed.rowcount != len(groups) and not await is_retrained(connection, campaign):
        raise StepOutOfOrder(
            f"campaign {campaign}: step {step} has {len(groups)} groups, of which only "
            f"{consumed.rowcount} are ready"
        )
    await connection.execute(
        insert(PolicyVersionRow).values(
            {"campaign_id": campaign, "version": step, "step": step, **version}
        )
    )
    await connection.execute(
        update(StepRow)
        .where(StepRow.campaign_id == campaign, StepRow.step == step)
        .values(status=StepStatus.DONE, metrics=metrics, finished_at=func.now())
    )


async def _admitted_first(
    connection: AsyncConnection, campaign: CampaignId, num_groups: int
) -> list[GroupId]:
    drawn_groups = select(StepGroupRow.group_id).where(StepGroupRow.campaign_id == campaign)
    ids = await connection.scalars(
        select(GroupRow.id)
        .where(
            GroupRow.campaign_id == campaign,
            GroupRow.kind == GroupKind.TRAIN,
            GroupRow.status == GroupStatus.READY,
            GroupRow.id.not_in(drawn_groups),
        )
        .order_by(GroupRow.index)
        .limit(num_groups)
    )
    return [GroupId(id) for id in ids]


async def groups_of(connection: AsyncConnection, campaign: CampaignId, step: int) -> list[GroupId]:
    """Groups of the step, in batch order."""
    ids = await connection.scalars(
        select(StepGroupRow.group_id)
        .where(StepGroupRow.campaign_id == campaign, StepGroupRow.step == step)
        .order_by(StepGroupRow.position)
    )
    return [GroupId(id) for id in ids]


def _of(campaign: CampaignId) -> Select[Any]:
    return select(*_COLUMNS).where(StepRow.campaign_id == campaign)


async def _one(connection: AsyncConnection, statement: Select[Any]) -> StepRecord:
    return StepRecord(*(await connection.execute(statement)).one())
