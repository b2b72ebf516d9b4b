"""Campaigns: their configuration and the status of each.

Invariants: creating twice with one configuration is creating once; a stored configuration never
changes but for its concurrency and its trackers: other changes are rows beside it (`changes`); a
training campaign that has finished stays so until a change prolongs it.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import (
    ARRAY,
    Integer,
    Text,
    case,
    cast,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.runs import campaign_record
from infra.db.runs.campaign_record import COLUMNS, CampaignRecord, record_of
from infra.db.runs.status_events import tell_status
from infra.db.tables.models import CampaignRow, SelectionRow
from infra.db.tasks.selections import Selected
from mainspring.config.any_run import AnyRun, concurrency_of, training, with_concurrency
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import (
    counts_of,
    differences,
    unchanged,
)
from mainspring.config.files.errors import shortened, shown
from mainspring.config.files.layers import keys_of
from mainspring.config.files.stored import RESUMED_ON, stored_form
from mainspring.config.sft import SftConfig
from mainspring.config.training.method_defaults import as_stored
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus, Incomplete

ENDS = (CampaignStatus.FINISHED, CampaignStatus.CANCELLED, CampaignStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Underway:
    campaign: CampaignId
    row_version: str
    """Changes with every write of the row."""


async def create(db: Database, config: AnyRun, selected: Sequence[Selected] = ()) -> bool:
    """Store a campaign with its tasks; False when it is there already, with those it was made with
    and the concurrency and trackers given now. Raises UsageError naming the fields in which a
    stored campaign of this name differs, whatever version stored it."""
    row = {
        "id": config.name,
        "kind": config.kind,
        "config": stored_form(config),
        "status": CampaignStatus.CREATED,
    }
    async with db.transaction() as connection:
        statement = postgres_insert(CampaignRow).values(row).on_conflict_do_nothing()
        created = await connection.scalar(statement.returning(CampaignRow.id))
        if created is not None and selected:
            await connection.execute(
                insert(SelectionRow),
                [{"campaign_id": created} | asdict(selection) for selection in selected],
            )
    if created is not None:
        return True
    stored = await get(db, CampaignId(config.name))
    before, config = _compared(stored, config)
    differing = differences(before, config)
    if differing:
        lines = [
            f"  {path}: {shown(old)} -> {shown(new)}" for path, (old, new) in differing.items()
        ]
        raise UsageError(
            "\n".join([f"campaign {config.name} exists with other fields:", *shortened(lines)]),
            remedy=_remedy(config, differing),
        )
    changed: Any = CampaignRow.config
    if not isinstance(config, SftConfig):
        # Earlier versions stored that of every kind where a campaign has it.
        path = case(
            (CampaignRow.config.has_key("concurrency"), cast(["concurrency"], ARRAY(Text))),
            else_=cast(["evaluation", "concurrency"], ARRAY(Text)),
        )
        concurrency = func.to_jsonb(cast(concurrency_of(config), Integer))
        changed = func.jsonb_set(changed, path, concurrency)
    # A row that an earlier version stored stays as it was, unless there is something new.
    trains = isinstance(config, CampaignConfig | SftConfig)
    if trains and config.tracking != getattr(stored.config, "tracking", None):
        tracking = cast(config.tracking.model_dump(mode="json"), JSONB)
        changed = func.jsonb_set(changed, cast(["tracking"], ARRAY(Text)), tracking)
    if stored.lacks_device and isinstance(config, CampaignConfig):
        device = cast(config.trainer.device.value, JSONB)
        if config.trainer.device is not training(stored.config).trainer.device:
            changed = func.jsonb_set(changed, cast([RESUMED_ON], ARRAY(Text)), device)
    async with db.transaction() as connection:
        await connection.execute(
            update(CampaignRow).where(CampaignRow.id == config.name).values(config=changed)
        )
    return False


async def changed_values(db: Database, config: CampaignConfig) -> list[tuple[tuple[str, ...], Any]]:
    """Fields, each by the parts of its name, in which a configuration differs from the stored
    campaign of its name, with their new values; empty where some of them can never change, and for
    a campaign that is not stored."""
    stored = await find(db, CampaignId(config.name))
    if stored is None:
        return []
    before, wanted = _compared(stored, config)
    differing = differences(before, wanted)
    if not all(map(counts_of, differing)):
        return []
    return [(keys_of(field), after) for field, (_, after) in differing.items()]


def _compared(stored: CampaignRecord, config: AnyRun) -> tuple[AnyRun, AnyRun]:
    """The stored configuration and the given one, without what may differ. Raises UsageError for
    runs of two kinds, and where rows are missing."""
    refuse_incomplete(stored.id, stored.incomplete)
    if stored.kind is not config.kind:
        raise UsageError(
            f"campaign {config.name} exists, and its kind is {stored.kind}, not {config.kind}",
            remedy="give the new one another name",
        )
    # What a file has to be is told by all changes, also by those that count later.
    latest = stored.latest
    if isinstance(config, CampaignConfig) and isinstance(latest, CampaignConfig):
        trainer = as_stored(config.trainer, latest.trainer)
        config = config.model_copy(update={"trainer": trainer})
    # How many rollouts run at once, and who is told of them, is not what a run is.
    before = with_concurrency(latest, concurrency_of(config))
    if isinstance(config, CampaignConfig | SftConfig):
        before = before.model_copy(update={"tracking": config.tracking})
    config = _at_stored_ports(config, latest)
    if stored.lacks_device and isinstance(config, CampaignConfig):
        before, config = _on_given_device(training(before), config)
    if isinstance(config, CampaignConfig) and stored.stored is not None:
        config = unchanged(training(stored.stored), stored.changes, config)
    return before, config


async def get(db: Database, campaign: CampaignId) -> CampaignRecord:
    """The campaign's record. Raises UnknownId."""
    record = await find(db, campaign)
    if record is None:
        raise unknown("campaign", campaign)
    return record


async def find(db: Database, campaign: CampaignId) -> CampaignRecord | None:
    """The campaign's record; None when it is not stored."""
    async with db.transaction() as connection:
        return await campaign_record.read(connection, campaign)


async def list_all(db: Database) -> list[CampaignRecord]:
    """All runs, newest first."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(*COLUMNS).order_by(CampaignRow.created_at.desc(), CampaignRow.id)
        )
        return [record_of(row) for row in rows]


async def set_status(
    db: Database, campaign: CampaignId, status: CampaignStatus, error: str | None = None
) -> CampaignStatus:
    """The status that stands: a late write does not reopen a finished campaign."""
    ended_at = func.coalesce(
        case((CampaignRow.status == status, CampaignRow.finished_at)), func.now()
    )
    async with db.transaction() as connection:
        before = await _locked_status(connection, campaign)
        new_status = await connection.scalar(
            update(CampaignRow)
            .where(CampaignRow.id == campaign, CampaignRow.status != CampaignStatus.FINISHED)
            .values(status=status, error=error, finished_at=ended_at if status in ENDS else None)
            .returning(CampaignRow.status)
        )
        if new_status is not None:
            await tell_status(connection, campaign, before, status, error)
    return new_status or (await get(db, campaign)).status


async def finish(db: Database, campaign: CampaignId) -> bool:
    """Give a run the status of its end in order. False, and nothing changed, when it is a training
    campaign with steps left: a change prolonged it in the meantime."""
    async with db.transaction() as connection:
        # A change of its number of steps comes before this or after it.
        await connection.execute(
            select(CampaignRow.id).where(CampaignRow.id == campaign).with_for_update()
        )
        record = await campaign_record.read(connection, campaign)
        if record is None:
            raise unknown("campaign", campaign)
        if isinstance(record.config, CampaignConfig) and record.changes:
            has_more = (record.version or 0) < record.num_steps
            if has_more:
                return False
        await connection.execute(
            update(CampaignRow)
            .where(CampaignRow.id == campaign, CampaignRow.status != CampaignStatus.FINISHED)
            .values(status=CampaignStatus.FINISHED, error=None, finished_at=func.now())
        )
        await tell_status(connection, campaign, record.status, CampaignStatus.FINISHED)
    return True


async def resume(
    db: Database,
    campaign: CampaignId,
    status: CampaignStatus = CampaignStatus.RUNNING,
) -> CampaignStatus | None:
    """Give a campaign that was cancelled or failed another status, because it is started again.
    The one it had; None, and nothing changed, when it had not ended that way. Raises UsageError
    while it is deleted or restored."""
    async with db.transaction() as connection:
        row = (
            await connection.execute(
                select(CampaignRow.status, CampaignRow.incomplete)
                .where(CampaignRow.id == campaign)
                .with_for_update()
            )
        ).one_or_none()
        before, incomplete = (None, None) if row is None else row
        refuse_incomplete(campaign, incomplete)
        if before not in (CampaignStatus.CANCELLED, CampaignStatus.FAILED):
            return None
        await connection.execute(
            update(CampaignRow)
            .where(CampaignRow.id == campaign)
            .values(status=status, error=None, finished_at=None)
        )
        await tell_status(connection, campaign, before, status)
        return before


async def underway(db: Database, campaign: CampaignId | None = None) -> list[Underway]:
    """Campaigns whose workflow should be running: all, or this one if it is among them."""
    statement = select(CampaignRow.id, literal_column("campaigns.xmin::text")).where(
        CampaignRow.status.not_in((*ENDS, CampaignStatus.CREATED)),
        CampaignRow.incomplete.is_(None),
    )
    if campaign is not None:
        statement = statement.where(CampaignRow.id == campaign)
    async with db.transaction() as connection:
        return [Underway(*row) for row in await connection.execute(statement)]


async def end_underway(
    db: Database, seen: Underway, status: CampaignStatus, error: str | None
) -> bool:
    """Give a campaign that is under way its end. False, and nothing changed, when the row was
    written since it was seen."""
    async with db.transaction() as connection:
        before = await _locked_status(connection, seen.campaign)
        updated = await connection.execute(
            update(CampaignRow)
            .where(
                CampaignRow.id == seen.campaign,
                literal_column("campaigns.xmin::text") == seen.row_version,
            )
            .values(status=status, error=error, finished_at=func.now())
        )
        if updated.rowcount:
            await tell_status(connection, seen.campaign, before, status, error)
    return bool(updated.rowcount)


async def reopen(db: Database, campaign: CampaignId) -> None:
    """Let a finished run be started again, for what of it ended without a verdict. A finished
    training campaign stays finished."""
    async with db.transaction() as connection:
        await connection.execute(
            update(CampaignRow)
            .where(
                CampaignRow.id == campaign,
                CampaignRow.kind.not_in((CampaignKind.TRAIN, CampaignKind.SFT)),
                CampaignRow.status == CampaignStatus.FINISHED,
            )
            .values(status=CampaignStatus.CREATED, finished_at=None)
        )


async def _locked_status(
    connection: AsyncConnection, campaign: CampaignId
) -> CampaignStatus | None:
    """Its status, which no other transaction changes before this one ends."""
    return await connection.scalar(
        select(CampaignRow.status).where(CampaignRow.id == campaign).with_for_update(key_share=True)
    )


def _remedy(config: AnyRun, fields: Collection[str]) -> str:
    if isinstance(config, CampaignConfig) and all(map(counts_of, fields)):
        return (
            f"change them with `mainspring campaign set {config.name} FIELD=VALUE`, or use the "
            "configuration it was made with"
        )
    return "give the new campaign another name, or use the configuration it was made with"


def refuse_incomplete(campaign: CampaignId, incomplete: Incomplete | None) -> None:
    """Refuse a campaign whose rows are not all there. Raises UsageError."""
    if error := not_whole(campaign, incomplete):
        raise error


def not_whole(campaign: CampaignId, incomplete: Incomplete | None) -> UsageError | None:
    """The error that tells why its rows are not all there; None: they are."""
    if incomplete is Incomplete.DELETING:
        return UsageError(
            f"campaign {campaign} is being deleted",
            remedy=f"`mainspring campaign delete {campaign}` completes that; its name is free then",
        )
    if incomplete is Incomplete.RESTORING:
        return UsageError(
            f"campaign {campaign} is being restored from an archive, and is not complete",
            remedy="wait for `mainspring campaign restore`, or repeat it where it was interrupted; "
            f"`mainspring campaign delete {campaign}` removes what was restored",
        )
    return None


def _on_given_device(
    stored: CampaignConfig, given: CampaignConfig
) -> tuple[CampaignConfig, CampaignConfig]:
    """Alike in the device, which the stored one never had, and in an engine that is not given:
    there was one."""
    device = {"device": given.trainer.device}
    engine = {"engine": given.trainer.engine or stored.trainer.engine}
    return (
        stored.model_copy(update={"trainer": stored.trainer.model_copy(update=device)}),
        given.model_copy(update={"trainer": given.trainer.model_copy(update=engine)}),
    )


def _at_stored_ports(config: AnyRun, stored: AnyRun) -> AnyRun:
    """A port 0 asks for a free one: it stands for the one that was chosen and stored."""
    new_engines, old_engines = config.policy.engines, stored.policy.engines
    if len(new_engines) != len(old_engines):
        return config
    pairs = zip(new_engines, old_engines, strict=True)
    engines = tuple(
        old if urlsplit(new).port == 0 and urlsplit(new).hostname == urlsplit(old).hostname else new
        for new, old in pairs
    )
    policy = config.policy.model_copy(update={"engines": engines})
    return config.model_copy(update={"policy": policy})
