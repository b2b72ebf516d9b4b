"""Leases of trainers: of all trainer processes of a campaign one works, the others stand aside.

Invariants: a lease is taken only from an owner that released it, was silent for too long, or is
known to have ended; taking it begins a new epoch; a write under an older epoch raises TrainerFenced
and changes nothing. A write holds the lease's row until it is committed, so no lease is taken in
the middle of one.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.columns import seconds
from infra.db.tables.event_writes import Event, write
from infra.db.tables.lease_rows import TrainerLeaseRow
from mainspring.ids import CampaignId
from mainspring.protocol.timeouts import LEASE_SILENT_S
from mainspring.status import EventKind
from mainspring.training.training_faults import TrainerFenced


@dataclass(frozen=True, slots=True)
class TrainerLease:
    campaign: CampaignId
    epoch: int
    owner: str
    process: str
    released: bool
    since: datetime
    held_s: float = field(compare=False)
    silent_s: float = field(compare=False)
    """Since it was renewed."""


_COLUMNS = (
    TrainerLeaseRow.campaign_id,
    TrainerLeaseRow.epoch,
    TrainerLeaseRow.owner,
    TrainerLeaseRow.process,
    TrainerLeaseRow.released,
    TrainerLeaseRow.since,
    *(seconds(func.now() - time) for time in (TrainerLeaseRow.since, TrainerLeaseRow.seen_at)),
)


async def take(
    db: Database,
    campaign: CampaignId,
    *,
    owner: str,
    process: str,
    ended: str | None = None,
    silent_s: float = LEASE_SILENT_S,
) -> TrainerLease | None:
    """A lease of a new epoch, or None while another process holds it. `ended` names a process that
    is known to have ended: what it holds is free."""
    silent = TrainerLeaseRow.seen_at < func.now() - timedelta(seconds=silent_s)
    values = {"owner": owner, "process": process, "released": False}
    statement = (
        insert(TrainerLeaseRow)
        .values(values | {"campaign_id": campaign, "epoch": 1})
        .on_conflict_do_update(
            index_elements=[TrainerLeaseRow.campaign_id],
            set_=values
            | {
                "epoch": TrainerLeaseRow.epoch + 1,
                "since": func.now(),
                "seen_at": func.now(),
            },
            where=or_(TrainerLeaseRow.released, silent, TrainerLeaseRow.process == ended),
        )
        .returning(*_COLUMNS)
    )
    async with db.transaction() as connection:
        before = await _read(connection, campaign)
        row = (await connection.execute(statement)).one_or_none()
        lease = None if row is None else TrainerLease(*row)
        if lease is not None and before is not None:
            await _tell_replaced(connection, before, lease)
    return lease


async def _tell_replaced(
    connection: AsyncConnection, before: TrainerLease, lease: TrainerLease
) -> None:
    """Nothing is told of an owner that ended in order, nor where another one came between."""
    if before.released or before.epoch + 1 != lease.epoch:
        return
    silent_s = round(before.silent_s)
    text = f"trainer {lease.owner} took over from {before.owner}, which was silent for {silent_s} s"
    data = {"epoch": lease.epoch, "before": before.owner, "silent_s": silent_s}
    await write(
        connection,
        Event(
            EventKind.TRAINER_REPLACED,
            before.owner,
            text,
            lease.campaign,
            lease.owner,
            data,
            key=f"trainer/{lease.campaign}/{lease.since.isoformat()}/{lease.epoch}",
        ),
    )


async def holder(db: Database, campaign: CampaignId) -> TrainerLease | None:
    """The newest lease, whether its owner lives or not; None before the first trainer."""
    async with db.transaction() as connection:
        return await _read(connection, campaign)


async def renew(db: Database, campaign: CampaignId, epoch: int) -> None:
    """Tell that the owner of `epoch` lives. Raises TrainerFenced."""
    async with db.transaction() as connection:
        renewed = await connection.execute(
            update(TrainerLeaseRow)
            .where(TrainerLeaseRow.campaign_id == campaign, TrainerLeaseRow.epoch == epoch)
            .values(seen_at=func.now())
        )
        if not renewed.rowcount:
            await _refuse(connection, campaign, epoch)


async def release(db: Database, campaign: CampaignId, epoch: int) -> None:
    """Let the next trainer begin at once; nothing happens when one has begun."""
    async with db.transaction() as connection:
        await connection.execute(
            update(TrainerLeaseRow)
            .where(TrainerLeaseRow.campaign_id == campaign, TrainerLeaseRow.epoch == epoch)
            .values(released=True)
        )


async def check(db: Database, campaign: CampaignId, epoch: int) -> None:
    """Check the trainer's epoch. Raises TrainerFenced when `epoch` is not the newest."""
    async with db.transaction() as connection:
        await refuse_fenced(connection, campaign, epoch)


async def refuse_fenced(connection: AsyncConnection, campaign: CampaignId, epoch: int) -> None:
    """Check the trainer's epoch within a transaction. Raises TrainerFenced when `epoch` is not the
    newest; else no other begins before the transaction ends."""
    held_epoch = await connection.scalar(
        select(TrainerLeaseRow.epoch)
        .where(TrainerLeaseRow.campaign_id == campaign, TrainerLeaseRow.epoch == epoch)
        .with_for_update(read=True)
    )
    if held_epoch is None:
        await _refuse(connection, campaign, epoch)


async def _refuse(connection: AsyncConnection, campaign: CampaignId, epoch: int) -> None:
    newer = await _read(connection, campaign)
    if newer is None:
        raise TrainerFenced(f"campaign {campaign}: no trainer holds its lease")
    raise TrainerFenced(
        f"campaign {campaign}: trainer {newer.owner} took over at {newer.since:%Y-%m-%d %H:%M:%S} "
        f"(epoch {newer.epoch}); epoch {epoch} is over",
        remedy="run one `mainspring worker trainer` for each campaign",
    )


async def _read(connection: AsyncConnection, campaign: CampaignId) -> TrainerLease | None:
    row = (
        await connection.execute(select(*_COLUMNS).where(TrainerLeaseRow.campaign_id == campaign))
    ).one_or_none()
    return None if row is None else TrainerLease(*row)
