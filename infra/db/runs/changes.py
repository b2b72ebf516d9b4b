"""Adding changes to a stored campaign, each for the first step that it can count for.

Invariants: a change counts from one step: its transaction waits for the plan of a step and for
groups that are being stored, and those wait for it; no row that is stored changes, and the same
values again are no change. The rules of fields are those of `mainspring.config.files.changes`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.runs import campaign_record, campaigns
from infra.db.runs.campaign_record import CampaignRecord
from infra.db.tables.change_rows import ChangeRow
from infra.db.tables.event_writes import Event, write
from infra.db.tables.models import CampaignRow, GroupRow, PolicyVersionRow, StepRow
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import (
    ALWAYS,
    LENGTH,
    FieldChange,
    counts_of,
    differences,
    given,
    is_in_place,
    refuse_fixed,
)
from mainspring.config.files.layers import name_of
from mainspring.config.section import Counts
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, EventKind

Values = Sequence[tuple[tuple[str, ...], Any]]
"""Values of fields, each with the parts of the field's name."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first steps that changes can count for."""

    step: int
    """The first step that is not planned."""
    rollouts: int
    """The first step under whose version no group was stored."""

    def of(self, field: str) -> int:
        match counts_of(field):
            case Counts.STEPS:
                return self.step
            case Counts.ROLLOUTS:
                return max(self.step, self.rollouts)
            case _:
                return ALWAYS


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """Changes that would be made now."""

    record: CampaignRecord
    changes: Sequence[FieldChange]
    config: CampaignConfig
    """As it will be when all of them count."""


async def pending(
    db: Database, campaign: CampaignId, values: Values, by: str, from_step: int | None = None
) -> PendingChanges:
    """The changes that `add` would make. Raises as that does."""
    async with db.transaction() as connection:
        return await _pending(connection, campaign, values, by, from_step)


async def add(
    db: Database, campaign: CampaignId, values: Values, by: str, from_step: int | None = None
) -> PendingChanges:
    """Change fields of a campaign from the first step on that each can count for, or from
    `from_step`. A finished campaign that gets more steps can be started again. Raises UsageError
    for what never changes, for a step that is planned, and where no step is left; ConfigError for
    values that a field cannot have."""
    async with db.transaction() as connection:
        # Waits for groups that are being stored, which hold their campaign's key.
        await connection.execute(
            select(CampaignRow.id).where(CampaignRow.id == campaign).with_for_update()
        )
        asked = await _pending(connection, campaign, values, by, from_step)
        if not asked.changes:
            return asked
        await connection.execute(
            insert(ChangeRow),
            [
                {
                    "campaign_id": campaign,
                    "number": change.number,
                    "field": change.field,
                    "before": change.before,
                    "after": change.after,
                    "from_step": change.from_step,
                    "changed_by": change.changed_by,
                }
                for change in asked.changes
            ],
        )
        await _write_in_place(connection, asked)
        if any(change.field == LENGTH for change in asked.changes):
            await _reopen(connection, campaign)
        told = "; ".join(change.line for change in asked.changes)
        await write(
            connection, Event(EventKind.COMMAND, campaign, f"campaign set: {told}", campaign, by)
        )
    return asked


async def _pending(
    connection: AsyncConnection,
    campaign: CampaignId,
    values: Values,
    by: str,
    from_step: int | None,
) -> PendingChanges:
    record = await campaign_record.read(connection, campaign)
    if record is None:
        raise unknown("campaign", campaign)
    campaigns.refuse_incomplete(campaign, record.incomplete)
    base = training(record.config)
    _refuse_retrained(record, values)
    earliest = await _earliest(connection, campaign)
    now = await connection.scalar(select(func.now()))
    assert now is not None
    # Whatever counts later already is not taken back by what counts from then on.
    latest = training(record.latest)
    wanted = given(latest, values)
    found = differences(latest, wanted)
    refuse_fixed(base, found)
    ends = max(latest.trainer.num_steps, wanted.trainer.num_steps)
    changes: list[FieldChange] = []
    for field, (before, after) in found.items():
        step = _first_step(base, field, max(earliest.of(field), _newest(record, field)), from_step)
        if field == LENGTH and after < step:
            raise _too_short(base, after, step)
        if step != ALWAYS:
            _refuse_after_the_end(base, field, step, ends)
        number = len(record.changes) + len(changes) + 1
        changes.append(FieldChange(number, field, before, after, step, by, now))
    return PendingChanges(record, changes, wanted)


def _refuse_retrained(record: CampaignRecord, values: Values) -> None:
    """All steps of such a campaign are planned."""
    later = [name for keys, _ in values if counts_of(name := name_of(keys)) is not Counts.AT_ONCE]
    if record.is_retrained and later and record.parent is not None:
        raise UsageError(
            f"campaign {record.id} trains the batches of {record.parent.campaign} again: all of "
            f"its steps are planned, and {', '.join(later)} cannot change",
            remedy=f"run `mainspring campaign retrain {record.parent.campaign} --as NEW --set ...`",
        )


def _newest(record: CampaignRecord, field: str) -> int:
    """The step from which the newest change of the field counts."""
    return max((c.from_step for c in record.changes if c.field == field), default=ALWAYS)


def _first_step(config: CampaignConfig, field: str, earliest: int, asked: int | None) -> int:
    if asked is None or earliest == ALWAYS:
        return earliest
    if asked < earliest:
        raise UsageError(
            f"campaign {config.name}: a change of {field} counts from step {earliest} at the "
            f"earliest, not from step {asked}: what comes before is planned, or has rollouts",
            remedy=f"give --from-step {earliest} or a later one, or none",
        )
    return asked


def _refuse_after_the_end(config: CampaignConfig, field: str, step: int, ends: int) -> None:
    if step > ends:
        raise UsageError(
            f"campaign {config.name}: a change of {field} counts from step {step}, and the "
            f"campaign ends after step {ends}",
            remedy=f"prolong it as well: {LENGTH}={step} or more",
        )


def _too_short(config: CampaignConfig, num_steps: int, from_step: int) -> UsageError:
    return UsageError(
        f"campaign {config.name} cannot end after step {num_steps}: a change of {LENGTH} counts "
        f"from step {from_step}",
        remedy=f"give {LENGTH}={from_step} or more; `mainspring campaign cancel {config.name}` "
        "ends a campaign that runs at once",
    )


async def _earliest(connection: AsyncConnection, campaign: CampaignId) -> Earliest:
    newest = await connection.scalar(
        select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.campaign_id == campaign)
    )
    planned = await connection.scalar(
        select(func.max(StepRow.step)).where(StepRow.campaign_id == campaign)
    )
    played = await connection.scalar(
        select(func.max(GroupRow.policy_version)).where(GroupRow.campaign_id == campaign)
    )
    step = max(newest or 0, planned or 0) + 1
    return Earliest(step, step if played is None else played + 2)


async def _write_in_place(connection: AsyncConnection, asked: PendingChanges) -> None:
    """Fields that campaigns have always changed in what is stored."""
    values: Mapping[str, Any] = {
        "evaluation": {"concurrency": asked.config.evaluation.concurrency},
        "tracking": asked.config.tracking.model_dump(mode="json"),
    }
    if not any(is_in_place(change.field) for change in asked.changes):
        return
    config = dict(
        await connection.scalar(select(CampaignRow.config).where(CampaignRow.id == asked.record.id))
        or {}
    )
    config["evaluation"] = {**config.get("evaluation", {}), **values["evaluation"]}
    config["tracking"] = values["tracking"]
    await connection.execute(
        update(CampaignRow).where(CampaignRow.id == asked.record.id).values(config=config)
    )


async def _reopen(connection: AsyncConnection, campaign: CampaignId) -> None:
    has_finished = CampaignRow.status == CampaignStatus.FINISHED
    await connection.execute(
        update(CampaignRow)
        .where(CampaignRow.id == campaign)
        .values(
            status=case((has_finished, CampaignStatus.CREATED), else_=CampaignRow.status),
            finished_at=case((has_finished, None), else_=CampaignRow.finished_at),
        )
    )
