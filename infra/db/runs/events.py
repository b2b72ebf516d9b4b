"""Events as they are told outside a transaction, and read: by commands, screens and reports.

Invariants: telling an event never fails what it tells of: a store that does not answer for
PATIENCE_S is a line in the log; a campaign's events are its own and those of machines and the
store while it was there; the oldest of the kinds that come often are pruned, so that the table is
bounded. Imported by whatever notices something, and by screens.
"""

import asyncio
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.event_rows import EventRow
from infra.db.tables.event_writes import Event, person, this_process, write
from infra.db.tables.models import CampaignRow
from mainspring.errors import DatabaseError
from mainspring.ids import CampaignId
from mainspring.status.event import COUNTED, LASTING, EventKind

__all__ = ["Event", "EventRecord", "newest", "person", "prune", "tell", "this_process"]

MAX_ROWS = 2000
"""Number of events of the pruned kinds, of one campaign, or of all that belong to none."""
PATIENCE_S = 10.0
"""Longer than an embedded Postgres takes to start again: what is told of a kill beside its own is
not lost."""
RETRY_S = 0.5
_COLUMNS = (
    EventRow.id,
    EventRow.at,
    EventRow.last_at,
    EventRow.count,
    EventRow.campaign_id,
    EventRow.kind,
    EventRow.subject,
    EventRow.text,
    EventRow.by,
    EventRow.data,
)
_DROP_LEFT = text(
    "DELETE FROM events WHERE campaign_id IS NOT NULL "
    "AND NOT EXISTS (SELECT FROM campaigns WHERE campaigns.id = events.campaign_id)"
)
"""Events of campaigns that were deleted while the event was written."""
_PRUNE = text(
    "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER "
    "(PARTITION BY campaign_id ORDER BY last_at DESC, id DESC) AS place FROM events "
    "WHERE kind <> ALL(:lasting)) AS placed WHERE place > :most)"
)


@dataclass(frozen=True, slots=True)
class EventRecord:
    id: str
    at: datetime
    last_at: datetime
    """When it happened the last time, of `count`."""
    count: int
    campaign: CampaignId | None
    """None: of a machine or of the store."""
    kind: str
    """A word of `EventKind`, or one of a newer version."""
    subject: str
    text: str
    """One sentence; of the last time where there were several."""
    by: str
    data: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "at": self.at.isoformat(timespec="milliseconds"),
            "last_at": self.last_at.isoformat(timespec="milliseconds"),
            "count": self.count,
            "campaign": self.campaign,
            "kind": self.kind,
            "subject": self.subject,
            "text": self.text,
            "by": self.by,
            "data": self.data,
        }


async def tell(db: Database, event: Event, *, patience_s: float = PATIENCE_S) -> None:
    """Write an event by itself, after what it tells of. Tried again while the store does not
    answer; after `patience_s` the event is in this process's log alone."""
    if event.kind not in COUNTED and not event.key:
        # Its id is chosen once: a writing whose answer was lost is not repeated.
        event = replace(event, key=uuid.uuid4().hex)
    happened_at = time.monotonic()
    while True:
        ago_s = time.monotonic() - happened_at
        try:
            return await put(db, event, ago_s=ago_s)
        except DatabaseError as error:
            if ago_s < patience_s:
                await asyncio.sleep(RETRY_S)
                continue
            import structlog  # commands that read events do without it: it takes long to load

            structlog.get_logger().warning(
                "an event was not stored", told=event.text, reason=error.message
            )
            return None


async def put(db: Database, event: Event, *, ago_s: float = 0.0) -> None:
    """Write an event that happened `ago_s` ago. Raises DatabaseError."""
    async with db.statement() as connection:
        await write(connection, event, ago_s=ago_s)


async def newest(
    db: Database,
    campaign: CampaignId | None = None,
    *,
    kinds: Collection[EventKind] = (),
    since: timedelta | None = None,
    limit: int | None = None,
) -> list[EventRecord]:
    """The newest events, the oldest of them first: of a campaign, or of all. `since`: only those of
    the time that long before now."""
    async with db.transaction() as connection:
        return await read(connection, campaign, kinds=kinds, since=since, limit=limit)


async def read(
    connection: AsyncConnection,
    campaign: CampaignId | None = None,
    *,
    kinds: Collection[EventKind] = (),
    since: timedelta | None = None,
    limit: int | None = None,
) -> list[EventRecord]:
    """The same within a transaction."""
    statement = select(*_COLUMNS).order_by(EventRow.last_at.desc(), EventRow.id.desc())
    if campaign is not None:
        statement = statement.where(_of(campaign))
    if kinds:
        statement = statement.where(EventRow.kind.in_([kind.value for kind in kinds]))
    if since is not None:
        statement = statement.where(EventRow.last_at >= func.now() - since)
    rows = await connection.execute(statement.limit(limit))
    return [EventRecord(*row) for row in reversed(rows.all())]


async def prune(db: Database, most: int = MAX_ROWS) -> int:
    """Remove the oldest events of the kinds that come often beyond `most` of each campaign; how
    many there were."""
    async with db.transaction() as connection:
        left = await connection.execute(_DROP_LEFT)
        pruned = await connection.execute(
            _PRUNE, {"lasting": sorted(kind.value for kind in LASTING), "most": most}
        )
    return left.rowcount + pruned.rowcount


def _of(campaign: CampaignId) -> ColumnElement[bool]:
    """Its own, and what happened to the machines and the store between its start and its end."""
    row = select(CampaignRow.created_at, CampaignRow.finished_at).where(CampaignRow.id == campaign)
    times = row.subquery()
    meanwhile = and_(
        EventRow.campaign_id.is_(None),
        or_(
            EventRow.subject == campaign,
            select(times.c.created_at)
            .where(
                EventRow.last_at >= times.c.created_at,
                or_(times.c.finished_at.is_(None), EventRow.last_at <= times.c.finished_at),
            )
            .exists(),
        ),
    )
    # Not of one of the same name that was deleted before.
    own = and_(
        EventRow.campaign_id == campaign,
        EventRow.last_at >= select(times.c.created_at).scalar_subquery(),
    )
    return or_(own, meanwhile)
