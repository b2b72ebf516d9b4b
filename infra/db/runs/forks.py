"""Storing a fork: a campaign whose first versions are those of another one.

Invariants: the row comes with its tasks, versions and changes in one transaction, after its files
are in their place; groups and rollouts of the parent are not copied. A campaign that trains the
parent's batches again has all of its steps planned in that transaction, each on groups of the
parent: what becomes of the parent's steps later changes none of them. Imported by commands.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, insert, literal, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.leases import LeaseHeld, ProcessLease
from infra.db.runs.campaign_record import CampaignRecord, Parent
from infra.db.runs.campaigns import refuse_incomplete
from infra.db.tables.change_rows import ChangeRow
from infra.db.tables.event_writes import Event, write
from infra.db.tables.models import (
    CampaignRow,
    GroupRow,
    PolicyVersionRow,
    SelectionRow,
    StepGroupRow,
    StepRow,
)
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import FieldChange
from mainspring.config.files.stored import stored_form
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus, EventKind, GroupKind, StepStatus

MADE_S = 60.0
"""For another command to make the campaign of a name: it copies a checkpoint or two."""


@dataclass(frozen=True, slots=True)
class ForkedVersion:
    version: int
    path: str
    """Its Hugging Face directory, the fork's own."""
    checkpoint: str | None
    """None: its weights alone."""


async def first_index(db: Database, campaign: CampaignId, version: int) -> int:
    """Index of the first training group that no step up to `version` of a campaign was admitted
    before."""
    async with db.transaction() as connection:
        newest = await connection.scalar(
            select(func.max(GroupRow.index))
            .join(StepGroupRow, StepGroupRow.group_id == GroupRow.id)
            .where(
                StepGroupRow.campaign_id == campaign,
                GroupRow.kind == GroupKind.TRAIN,
                StepGroupRow.step <= version,
            )
        )
    return 0 if newest is None else newest + 1


async def add(
    db: Database,
    config: CampaignConfig,
    uid: str,
    parent: CampaignRecord,
    begins: Parent,
    versions: Sequence[ForkedVersion],
    changes: Sequence[FieldChange],
    by: str = "",
) -> None:
    """Store the fork. `by`: the person who asked for it. Raises UsageError when its name is taken,
    the parent is being deleted, or a step whose batch is to be trained again is not there any
    more."""
    row: Mapping[str, Any] = {
        "id": config.name,
        "kind": CampaignKind.TRAIN,
        "uid": uid,
        "config": stored_form(config),
        "status": CampaignStatus.CREATED,
        "parent": asdict(begins),
    }
    try:
        async with db.transaction() as connection:
            incomplete = await connection.scalar(
                select(CampaignRow.incomplete).where(CampaignRow.id == parent.id).with_for_update()
            )
            refuse_incomplete(parent.id, incomplete)
            await connection.execute(insert(CampaignRow).values(row))
            columns = [c for c in SelectionRow.__table__.c if c.name != "campaign_id"]
            tasks = select(literal(config.name), *columns).where(
                SelectionRow.campaign_id == parent.id
            )
            names = ["campaign_id", *(column.name for column in columns)]
            await connection.execute(insert(SelectionRow).from_select(names, tasks))
            for version in versions:
                of_parent = select(
                    literal(config.name),
                    literal(version.version),
                    literal(version.path),
                    literal(version.checkpoint),
                    PolicyVersionRow.fingerprint,
                    PolicyVersionRow.stamp,
                ).where(
                    PolicyVersionRow.campaign_id == parent.id,
                    PolicyVersionRow.version == version.version,
                )
                names = ["campaign_id", "version", "path", "checkpoint", "fingerprint", "stamp"]
                await connection.execute(insert(PolicyVersionRow).from_select(names, of_parent))
            if changes:
                await connection.execute(
                    insert(ChangeRow),
                    [asdict(change) | {"campaign_id": config.name} for change in changes],
                )
            for step, of in enumerate(begins.order or (), begins.version + 1):
                await _plan(connection, config.name, step, parent.id, of)
            what = "campaign retrain" if begins.order else "campaign fork"
            text = f"{what}: {config.name} begins with version {begins.version} of {parent.id}"
            await write(connection, Event(EventKind.COMMAND, config.name, text, config.name, by))
    except IntegrityError as error:
        raise taken(config.name) from error


async def _plan(
    connection: AsyncConnection, campaign: str, step: int, parent: CampaignId, of: int
) -> None:
    """Plan a step on the batch of the parent's step `of`."""
    await connection.execute(
        insert(StepRow).values(
            campaign_id=campaign,
            step=step,
            status=StepStatus.PLANNED,
            policy_version_before=step - 1,
        )
    )
    groups = select(
        literal(campaign), literal(step), StepGroupRow.group_id, StepGroupRow.position
    ).where(StepGroupRow.campaign_id == parent, StepGroupRow.step == of)
    names = ["campaign_id", "step", "group_id", "position"]
    planned = await connection.execute(insert(StepGroupRow).from_select(names, groups))
    if not planned.rowcount:
        raise UsageError(
            f"campaign {parent} has no step {of} any more: it was discarded just now",
            remedy="repeat the command",
        )


@asynccontextmanager
async def made_alone(db: Database, name: CampaignId) -> AsyncIterator[None]:
    """The turn to make a campaign of this name: its files are copied by one process at a time.
    Raises UsageError when another one takes longer than MADE_S."""
    async with AsyncExitStack() as turn:
        try:
            await turn.enter_async_context(ProcessLease(db, f"fork {name}", wait_s=MADE_S).held())
        except LeaseHeld as held:
            raise UsageError(
                f"another command makes campaign {name}: {held.message}",
                remedy="repeat this command when it has ended",
            ) from None
        yield


def taken(name: str) -> UsageError:
    """The error for a name that a run has."""
    return UsageError(f"campaign {name} exists", remedy="give the new campaign another name")
