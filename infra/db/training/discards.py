"""Discards of a batch that cannot be trained, by the trainer or an operator, or of the newest
version, by an operator.

Invariants: what is discarded is named by what was seen of it, so that a command that runs twice
discards once; discarded groups are masked with a note that tells why and are replaced; their
rollouts and tokens stay stored. Versions stay contiguous.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.rollouts import leftovers
from infra.db.tables.event_writes import Event, write
from infra.db.tables.models import (
    CampaignRow,
    GroupRow,
    PolicyVersionRow,
    RolloutRow,
    StepGroupRow,
    StepRow,
)
from infra.db.tables.rollout_ends import DONE
from infra.db.training import steps
from infra.db.training.trainers import refuse_fenced
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, GroupId
from mainspring.status import (
    CampaignStatus,
    EventKind,
    GroupKind,
    GroupStatus,
    RolloutPhase,
    StepStatus,
    StopReason,
)

NOTHING = "had nothing to train"
"""In the note of groups that a trainer replaced."""
_OPEN = (GroupStatus.RUNNING, GroupStatus.READY)


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned step that is not done."""

    step: int
    groups: list[GroupId]


@dataclass(frozen=True, slots=True)
class Discarded:
    """A policy version and what went with it."""

    version: int
    groups: list[GroupId]
    """Training groups that are masked now."""
    was_running: list[GroupId]
    """Those of them that were in flight."""


async def planned_batch(db: Database, campaign: CampaignId) -> Batch:
    """The batch of the planned step. Raises UsageError when no batch is planned, UnknownId."""
    async with db.transaction() as connection:
        await _lock(connection, campaign)
        await _refuse_retrained(connection, campaign)
        return await _planned(connection, campaign)


async def drop_batch(db: Database, campaign: CampaignId, seen: Batch, by: str = "") -> bool:
    """Take the plan of `seen` back and mask its groups. `by`: who gives the command. False when
    that was done before. Raises UsageError when its step is done meanwhile."""
    async with db.transaction() as connection:
        await _lock(connection, campaign)
        status = await connection.scalar(
            select(StepRow.status)
            .where(StepRow.campaign_id == campaign, StepRow.step == seen.step)
            .with_for_update()
        )
        if status is StepStatus.DONE:
            raise UsageError(
                f"campaign {campaign}: step {seen.step} is done, its batch is trained on",
                remedy=f"`mainspring campaign rollback {campaign}` takes its version back",
            )
        if status is None or await steps.groups_of(connection, campaign, seen.step) != seen.groups:
            return False
        await _forget_step(connection, campaign, seen.step)
        await _mask(
            connection,
            GroupRow.id.in_(seen.groups),
            f"dropped by an operator with step {seen.step}",
        )
        text = f"campaign drop-batch: {len(seen.groups)} groups of step {seen.step} are replaced"
        await write(connection, Event(EventKind.COMMAND, campaign, text, campaign, by))
        return True


async def replace_batch(
    db: Database,
    campaign: CampaignId,
    seen: Batch,
    reason: str,
    *,
    most_groups: int,
    trainer_epoch: int,
) -> bool:
    """Take the plan of `seen` back, in which nothing can be trained, and mask its groups with the
    `reason`. True also when it was taken back before. False, and the plan stands, when
    `most_groups` were replaced for this step already; then they count no more, so that a campaign
    that is started again has as many. Raises TrainerFenced."""
    note = f"step {seen.step} {NOTHING}: "
    async with db.transaction() as connection:
        await _lock(connection, campaign)
        await refuse_fenced(connection, campaign, trainer_epoch)
        planned = await steps.groups_of(connection, campaign, seen.step)
        if not planned or planned != seen.groups:
            return True
        replaced = (GroupRow.campaign_id == campaign) & GroupRow.note.startswith(note)
        num = await connection.scalar(select(func.count()).where(replaced))
        if (num or 0) >= most_groups:
            counted = func.concat("before a failure, ", GroupRow.note)
            await connection.execute(update(GroupRow).where(replaced).values(note=counted))
            return False
        await _forget_step(connection, campaign, seen.step)
        await _mask(connection, GroupRow.id.in_(planned), f"{note}{reason}")
        return True


async def rollback(
    db: Database, campaign: CampaignId, version: int, by: str = ""
) -> Discarded | None:
    """Discard policy version `version` and its step, so that the one before is the newest; every
    open group and the groups of the step are masked, because their tokens may be of the discarded
    weights. None when that was done before. The campaign must not run. Raises UsageError when
    another version is the newest."""
    async with db.transaction() as connection:
        await _lock(connection, campaign)
        newest = await newest_version(connection, campaign)
        if newest == version - 1:
            return None
        if newest != version:
            raise UsageError(
                f"campaign {campaign}: version {newest} is the newest, not version {version}",
                remedy="look again with `mainspring campaign show`",
            )
        note = f"discarded by an operator with policy version {version}"
        of_step = await steps.groups_of(connection, campaign, version)
        running = await connection.scalars(
            select(GroupRow.id).where(
                GroupRow.campaign_id == campaign,
                GroupRow.kind == GroupKind.TRAIN,
                GroupRow.status == GroupStatus.RUNNING,
            )
        )
        was_running = [GroupId(id) for id in running]
        for step in (version + 1, version):
            await _forget_step(connection, campaign, step)
        masked = await _mask(
            connection,
            (GroupRow.campaign_id == campaign)
            & (GroupRow.kind == GroupKind.TRAIN)
            & (GroupRow.status.in_(_OPEN) | GroupRow.id.in_(of_step)),
            note,
        )
        # The version is made again with other weights, and then measured again.
        evaluations = await _mask(
            connection,
            (GroupRow.campaign_id == campaign)
            & (GroupRow.kind == GroupKind.EVAL)
            & (GroupRow.policy_version == version),
            note,
        )
        await connection.execute(
            update(RolloutRow)
            .where(RolloutRow.group_id.in_(evaluations))
            .values(stop_reason=StopReason.CANCELLED, verdict=null(), reward=null(), fault=note)
        )
        await connection.execute(
            delete(PolicyVersionRow).where(
                PolicyVersionRow.campaign_id == campaign, PolicyVersionRow.version == version
            )
        )
        text = f"campaign rollback: version {version} discarded, {len(masked)} groups masked"
        await write(connection, Event(EventKind.COMMAND, campaign, text, campaign, by))
        return Discarded(version, list(masked), was_running)


async def newest_to_discard(db: Database, campaign: CampaignId) -> int:
    """The version that a rollback takes. Raises UsageError when there is none, or the campaign is
    finished; UnknownId."""
    async with db.transaction() as connection:
        if await _lock(connection, campaign) is CampaignStatus.FINISHED:
            raise UsageError(
                f"campaign {campaign} is finished: a finished campaign does not change",
                remedy="start another one from its weights",
            )
        await _refuse_retrained(connection, campaign)
        newest = await newest_version(connection, campaign)
        parent = await connection.scalar(
            select(CampaignRow.parent).where(CampaignRow.id == campaign)
        )
    if parent is not None and newest == parent["version"]:
        raise UsageError(
            f"campaign {campaign} begins with version {newest} of campaign {parent['campaign']}",
            remedy="only versions that a step of its own made can be taken back",
        )
    if newest is None or newest == 0:
        raise UsageError(
            f"campaign {campaign} has no version before "
            + ("its first one" if newest is None else "version 0"),
            remedy="only versions that a step made can be taken back",
        )
    return newest


async def newest_version(connection: AsyncConnection, campaign: CampaignId) -> int | None:
    """Number of the newest policy version; None before the first."""
    return await connection.scalar(
        select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.campaign_id == campaign)
    )


async def _refuse_retrained(connection: AsyncConnection, campaign: CampaignId) -> None:
    if await steps.is_retrained(connection, campaign):
        raise UsageError(
            f"campaign {campaign} trains the batches of another one again: they are not its own "
            "to discard",
            remedy="retrain under another name, with --steps or --order for some of the batches",
        )


async def _planned(connection: AsyncConnection, campaign: CampaignId) -> Batch:
    step = await connection.scalar(
        select(StepRow.step)
        .where(StepRow.campaign_id == campaign, StepRow.status == StepStatus.PLANNED)
        .order_by(StepRow.step)
        .limit(1)
    )
    if step is None:
        raise UsageError(
            f"campaign {campaign} has no planned batch: nothing was dropped",
            remedy="`mainspring campaign show` has its steps",
        )
    return Batch(step, await steps.groups_of(connection, campaign, step))


async def _lock(connection: AsyncConnection, campaign: CampaignId) -> CampaignStatus:
    """Plans of steps take turns with this."""
    status = await connection.scalar(
        select(CampaignRow.status).where(CampaignRow.id == campaign).with_for_update(key_share=True)
    )
    if status is None:
        raise unknown("campaign", campaign)
    return status


async def _forget_step(connection: AsyncConnection, campaign: CampaignId, step: int) -> None:
    for table in (StepGroupRow, StepRow):
        await connection.execute(
            delete(table).where(table.campaign_id == campaign, table.step == step)
        )


async def _mask(
    connection: AsyncConnection, condition: ColumnElement[bool], note: str
) -> Sequence[GroupId]:
    """Groups first, then their rollouts: `rollouts.claim` locks in the same order."""
    ids = await connection.scalars(
        update(GroupRow)
        .where(condition)
        .values(
            status=GroupStatus.MASKED,
            note=note,
            finished_at=func.coalesce(GroupRow.finished_at, func.clock_timestamp()),
        )
        .returning(GroupRow.id)
    )
    masked = [GroupId(id) for id in sorted(ids)]
    ended = RolloutRow.group_id.in_(masked)
    await connection.execute(
        update(RolloutRow)
        .where(ended, ~DONE)
        .values(
            phase=RolloutPhase.DONE,
            stop_reason=StopReason.CANCELLED,
            fault=note,
            finished_at=func.now(),
        )
    )
    await leftovers.drop_of_ended(connection, ended)
    return masked
