"""Campaigns: their configuration, which is fixed, and the status of each.

Invariants: creating twice with one configuration is creating once; a stored configuration never
changes but for its concurrency and its trackers; a finished training campaign stays finished.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from sqlalchemy import (
    ARRAY,
    Integer,
    Row,
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

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.tables.models import CampaignRow, SelectionRow
from infra.db.tasks.selections import Selected
from mainspring.config.any_run import AnyRun, concurrency_of, training, with_concurrency
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.errors import shortened, shown
from mainspring.config.files.stored import RESUMED_ON, lacks_device, read_stored
from mainspring.config.sft import SftConfig
from mainspring.config.training.method_defaults import as_stored
from mainspring.errors import ConfigError, UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus, Incomplete

ENDS = (CampaignStatus.FINISHED, CampaignStatus.CANCELLED, CampaignStatus.FAILED)
_COLUMNS = (
    CampaignRow.id,
    CampaignRow.kind,
    CampaignRow.config,
    CampaignRow.status,
    CampaignRow.error,
    CampaignRow.created_at,
    CampaignRow.finished_at,
    CampaignRow.uid,
    CampaignRow.incomplete,
)


@dataclass(frozen=True, slots=True)
class CampaignRecord:
    id: CampaignId
    config: AnyRun
    status: CampaignStatus
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    uid: str
    """Tells it from another campaign of this name, in another store or another time."""
    config_digest: str
    """Digest of what shapes its weights, as it was stored, whatever version reads it."""
    lacks_device: bool = False
    """A version without `trainer.device` stored it: it resumes on the device that is given."""
    incomplete: Incomplete | None = None
    """Why its rows are not all there; None: they are."""

    @property
    def kind(self) -> CampaignKind:
        return self.config.kind


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
        "config": config.model_dump(mode="json"),
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
    refuse_incomplete(stored.id, stored.incomplete)
    if stored.kind is not config.kind:
        raise UsageError(
            f"campaign {config.name} exists, and its kind is {stored.kind}, not {config.kind}",
            remedy="give the new one another name",
        )
    if isinstance(config, CampaignConfig) and isinstance(stored.config, CampaignConfig):
        trainer = as_stored(config.trainer, stored.config.trainer)
        config = config.model_copy(update={"trainer": trainer})
    # How many rollouts run at once, and who is told of them, is not what a run is.
    before = with_concurrency(stored.config, concurrency_of(config))
    if isinstance(config, CampaignConfig | SftConfig):
        before = before.model_copy(update={"tracking": config.tracking})
    config = _at_stored_ports(config, stored.config)
    if stored.lacks_device and isinstance(config, CampaignConfig):
        before, config = _on_given_device(training(before), config)
    differing = sorted(_differences(before.model_dump(), config.model_dump()))
    if differing:
        raise UsageError(
            "\n".join([f"campaign {config.name} exists with other fields:", *shortened(differing)]),
            remedy="give the new campaign another name, or use the configuration it was made with",
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


async def get(db: Database, campaign: CampaignId) -> CampaignRecord:
    """The campaign's record. Raises UnknownId."""
    record = await find(db, campaign)
    if record is None:
        raise unknown("campaign", campaign)
    return record


async def find(db: Database, campaign: CampaignId) -> CampaignRecord | None:
    """The campaign's record; None when it is not stored."""
    async with db.transaction() as connection:
        result = await connection.execute(select(*_COLUMNS).where(CampaignRow.id == campaign))
        row = result.one_or_none()
    return None if row is None else _record(row)


async def list_all(db: Database) -> list[CampaignRecord]:
    """All runs, newest first."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(*_COLUMNS).order_by(CampaignRow.created_at.desc(), CampaignRow.id)
        )
        return [_record(row) for row in rows]


async def set_status(
    db: Database, campaign: CampaignId, status: CampaignStatus, error: str | None = None
) -> CampaignStatus:
    """The status that stands: a late write does not reopen a finished campaign."""
    ended_at = func.coalesce(
        case((CampaignRow.status == status, CampaignRow.finished_at)), func.now()
    )
    async with db.transaction() as connection:
        new_status = await connection.scalar(
            update(CampaignRow)
            .where(CampaignRow.id == campaign, CampaignRow.status != CampaignStatus.FINISHED)
            .values(status=status, error=error, finished_at=ended_at if status in ENDS else None)
            .returning(CampaignRow.status)
        )
    return new_status or (await get(db, campaign)).status


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
        updated = await connection.execute(
            update(CampaignRow)
            .where(
                CampaignRow.id == seen.campaign,
                literal_column("campaigns.xmin::text") == seen.row_version,
            )
            .values(status=status, error=error, finished_at=func.now())
        )
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


def _record(row: Row[Any]) -> CampaignRecord:
    try:
        config = read_stored(row.kind, row.config)
    except ValidationError as error:
        # The first part is the kind.
        field = ".".join(map(str, error.errors()[0]["loc"][1:]))
        raise ConfigError(
            f"campaign {row.id} was stored by another version: {field}: {error.errors()[0]['msg']}",
            remedy="use the version of Mainspring that made it",
        ) from None
    # What is measured, and who is told of it, shapes no weights.
    shaping = {
        name: section
        for name, section in row.config.items()
        if name not in ("evaluation", "tracking", RESUMED_ON)
    }
    raw = json.dumps(shaping, sort_keys=True, separators=(",", ":"))
    return CampaignRecord(
        row.id,
        config,
        row.status,
        row.error,
        row.created_at,
        row.finished_at,
        uid=row.uid,
        config_digest=hashlib.sha256(raw.encode()).hexdigest(),
        lacks_device=lacks_device(row.kind, row.config),
        incomplete=row.incomplete,
    )


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


def _differences(stored: Any, given: Any, path: str = "") -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in stored.keys() | given.keys():
            yield from _differences(stored.get(key), given.get(key), f"{path}.{key}".lstrip("."))
    elif stored != given:
        yield f"  {path}: {shown(stored)} -> {shown(given)}"
