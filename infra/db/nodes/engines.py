"""The fleet of a campaign: the engines that serve its policy, as each was last seen.

Invariants: members are the engines of `policy.engines` and those that were added or registered; a
name is one engine, whatever its address, and belongs to the process that registered it last; an
address is one engine. "Now" is the database's clock. An engine is asked how it is by one process
at a time, whichever claims it first. Read by whatever asks engines, and by the command line.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.columns import seconds
from infra.db.tables.engine_rows import EngineRow
from infra.db.tables.event_rows import EventRow
from infra.db.tables.event_writes import Event, write
from mainspring.config.policy import same_address
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import EngineOrigin, EngineStatus, EventKind

LOOK_S = 2.0
"""Between two looks at an engine."""
KV_FULL = 0.9
"""Share of its KV cache above which an engine has no room for more rollouts: their first prefill
would push out what others continue."""
LOST_AFTER_S = 5.0
"""An engine that did not answer for so long gets no request while another one does."""
_FIELDS = (
    EngineRow.name,
    EngineRow.url,
    EngineRow.origin,
    EngineRow.draining,
    EngineRow.fault,
    EngineRow.version,
    EngineRow.model,
    EngineRow.vocab_size,
    EngineRow.num_running,
    EngineRow.num_waiting,
    EngineRow.kv_used,
    seconds(func.now() - EngineRow.seen_at),
    seconds(func.now() - EngineRow.looked_at),
)


@dataclass(frozen=True, slots=True)
class EngineLook:
    """State of an engine, as it told it."""

    version: str = ""
    """Label of the weights that it serves."""
    model: str = ""
    vocab_size: int | None = None
    num_running: int = 0
    num_waiting: int = 0
    kv_used: float | None = None
    """Share of its KV cache that requests hold; None: it does not tell."""
    fault: str = ""
    """Why it did not answer; empty: it did."""


@dataclass(frozen=True, slots=True)
class EngineRecord:
    name: str
    url: str
    origin: EngineOrigin
    draining: bool
    fault: str
    version: str
    model: str
    vocab_size: int | None
    num_running: int
    num_waiting: int
    kv_used: float | None
    seen_s: float | None
    """Since it last answered; None: it never did."""
    looked_s: float | None
    """Since it was last asked; None: it never was."""

    @property
    def load(self) -> int:
        """Requests that it had when it was last seen."""
        return self.num_running + self.num_waiting

    @property
    def is_lost(self) -> bool:
        """It was asked, and did not answer; one that was not asked for long may well answer."""
        return bool(self.fault) and (self.seen_s is None or self.seen_s > LOST_AFTER_S)

    @property
    def status(self) -> EngineStatus:
        if self.is_lost:
            return EngineStatus.LOST
        if self.draining:
            return EngineStatus.DRAINING if self.load else EngineStatus.DRAINED
        return EngineStatus.UP if self.seen_s is not None else EngineStatus.JOINING


def listed(url: str) -> EngineRecord:
    """An engine of `policy.engines` that no process has asked yet."""
    origin = EngineOrigin.LISTED
    return EngineRecord(url, url, origin, False, "", "", "", None, 0, 0, None, None, None)


async def members(db: Database, campaign: CampaignId, urls: Sequence[str]) -> list[EngineRecord]:
    """The fleet now, by name. `urls`: the campaign's `policy.engines`."""
    async with db.transaction() as connection:
        return await _members(connection, campaign, urls)


async def claim(
    db: Database, campaign: CampaignId, urls: Sequence[str]
) -> tuple[list[EngineRecord], list[EngineRecord]]:
    """The fleet, and the members of it that this process is to ask now: no other one will for
    LOOK_S. Members that are no longer in `urls`, and were never anything else, are forgotten."""
    async with db.transaction() as connection:
        fleet = await _members(connection, campaign, urls)
        of_campaign = EngineRow.campaign_id == campaign
        stored = set(await connection.scalars(select(EngineRow.url).where(of_campaign)))
        if missing := [each for each in fleet if each.url not in stored]:
            rows = [_row(campaign, each.name, each.url, EngineOrigin.LISTED) for each in missing]
            await connection.execute(insert(EngineRow).on_conflict_do_nothing(), rows)
        if stored - {each.url for each in fleet}:
            await connection.execute(
                delete(EngineRow).where(
                    EngineRow.campaign_id == campaign,
                    EngineRow.origin == EngineOrigin.LISTED,
                    EngineRow.url.not_in(urls),
                )
            )
        since = func.now() - timedelta(seconds=LOOK_S)
        due = (
            select(EngineRow.name)
            .where(
                EngineRow.campaign_id == campaign,
                or_(EngineRow.looked_at.is_(None), EngineRow.looked_at < since),
            )
            .order_by(EngineRow.name)
            .with_for_update(skip_locked=True)
        )
        names = set(
            await connection.scalars(
                update(EngineRow)
                .where(EngineRow.campaign_id == campaign, EngineRow.name.in_(due))
                .values(looked_at=func.now())
                .returning(EngineRow.name)
            )
        )
    return fleet, [each for each in fleet if each.name in names]


async def saw(db: Database, campaign: CampaignId, name: str, url: str, look: EngineLook) -> None:
    """Store how `name` was when it was asked at `url`; nothing where it is elsewhere by now."""
    own = (EngineRow.campaign_id == campaign, EngineRow.name == name, EngineRow.url == url)
    async with db.transaction() as connection:
        found = await connection.execute(select(*_FIELDS).where(*own).with_for_update())
        if (row := found.one_or_none()) is None:
            return
        await connection.execute(update(EngineRow).where(*own).values(_seen(look)))
        await _tell_seen(connection, campaign, EngineRecord(*row), look)


async def _tell_seen(
    connection: AsyncConnection, campaign: CampaignId, before: EngineRecord, look: EngineLook
) -> None:
    """Tell when an engine answers for the first time, is lost, or is back: once each. One that
    never answered may not have been started yet, and is not lost."""
    if not look.fault and before.seen_s is None:
        await _tell(connection, EventKind.ENGINE_JOINED, campaign, before.name, "answers")
    elif not look.fault and before.is_lost:
        words = f"answers again, after {before.seen_s:.0f} s"
        await _tell(connection, EventKind.ENGINE_BACK, campaign, before.name, words)
    elif look.fault and before.seen_s is not None and before.seen_s > LOST_AFTER_S:
        told = select(EventRow.id).where(
            EventRow.campaign_id == campaign,
            EventRow.kind == EventKind.ENGINE_LOST.value,
            EventRow.subject == before.name,
            EventRow.last_at > func.now() - timedelta(seconds=before.seen_s),
        )
        if await connection.scalar(told) is None:
            words = f"is lost: {look.fault}"
            await _tell(connection, EventKind.ENGINE_LOST, campaign, before.name, words)


async def _tell(
    connection: AsyncConnection,
    kind: EventKind,
    campaign: CampaignId,
    name: str,
    words: str,
    by: str = "",
) -> None:
    await write(connection, Event(kind, name, f"engine {name} {words}", campaign, by))


async def add(
    db: Database, campaign: CampaignId, urls: Sequence[str], name: str, url: str, by: str
) -> None:
    """Make an engine that runs already a member. Raises UsageError where its name or its address
    is another member's."""
    async with db.transaction() as connection:
        await _lock(connection, campaign)
        for member in await _members(connection, campaign, urls):
            _refuse_taken(campaign, member.name, member.url, name, url)
        await connection.execute(
            insert(EngineRow).values(_row(campaign, name, url, EngineOrigin.ADDED, by))
        )
        await _tell(connection, EventKind.COMMAND, campaign, name, f"added, at {url}", by)


async def register(
    db: Database, campaign: CampaignId, name: str, url: str, look: EngineLook, by: str
) -> str:
    """Make an engine that reports itself a member, or the member of its name that came back; the
    token of its life. Raises UsageError where another process that answers has its name, or another
    engine its address."""
    life = uuid.uuid4().hex
    async with db.transaction() as connection:
        await _lock(connection, campaign)
        since = func.now() - timedelta(seconds=LOST_AFTER_S)
        alive = await connection.execute(
            select(EngineRow.name, EngineRow.url).where(
                EngineRow.campaign_id == campaign,
                EngineRow.seen_at > since,
                EngineRow.origin == EngineOrigin.REGISTERED,
            )
        )
        for row in alive:
            _refuse_taken(campaign, row.name, row.url, name, url)
        # An engine that answered here is gone: this one listens at its address.
        await connection.execute(
            delete(EngineRow).where(
                EngineRow.campaign_id == campaign, EngineRow.url == url, EngineRow.name != name
            )
        )
        row = _row(campaign, name, url, EngineOrigin.REGISTERED, by)
        values = row | _seen(look) | {"life": life, "looked_at": func.now()}
        await connection.execute(
            insert(EngineRow)
            .values(values)
            .on_conflict_do_update(
                index_elements=[EngineRow.campaign_id, EngineRow.name], set_=values
            )
        )
        await _tell(connection, EventKind.ENGINE_JOINED, campaign, name, f"joined, at {url}", by)
    return life


async def report(
    db: Database, campaign: CampaignId, name: str, life: str, look: EngineLook
) -> bool:
    """Store what a registered engine tells of itself; whether the name is still its own: a person
    may have removed it, or a later process have taken the name."""
    async with db.transaction() as connection:
        result = await connection.execute(
            update(EngineRow)
            .where(
                EngineRow.campaign_id == campaign, EngineRow.name == name, EngineRow.life == life
            )
            .values(_seen(look) | {"looked_at": func.now()})
        )
    return result.rowcount == 1


async def leave(db: Database, campaign: CampaignId, name: str, life: str) -> None:
    """A registered engine that ends in order is no member any more."""
    async with db.transaction() as connection:
        left = await connection.execute(
            delete(EngineRow).where(
                EngineRow.campaign_id == campaign, EngineRow.name == name, EngineRow.life == life
            )
        )
        if left.rowcount:
            await _tell(connection, EventKind.ENGINE_LEFT, campaign, name, "ended in order")


async def set_draining(
    db: Database,
    campaign: CampaignId,
    urls: Sequence[str],
    name: str,
    draining: bool,
    by: str = "",
) -> None:
    """Let a member, by its name or address, get no new requests, or get them again. `by`: who gives
    the command. Raises UsageError."""
    member = find(campaign, await members(db, campaign, urls), name)
    row = _row(campaign, member.name, member.url, member.origin) | {"draining": draining}
    async with db.transaction() as connection:
        await connection.execute(
            insert(EngineRow)
            .values(row)
            .on_conflict_do_update(
                index_elements=[EngineRow.campaign_id, EngineRow.name],
                set_={"draining": draining},
            )
        )
        words = "drained" if draining else "gets requests again"
        await _tell(connection, EventKind.COMMAND, campaign, member.name, words, by)


async def remove(db: Database, campaign: CampaignId, name: str, by: str = "") -> None:
    """Forget a member; a process that registered it ends when it hears of that. `by`: who gives the
    command."""
    async with db.transaction() as connection:
        removed = await connection.execute(
            delete(EngineRow).where(EngineRow.campaign_id == campaign, EngineRow.name == name)
        )
        if removed.rowcount:
            await _tell(connection, EventKind.COMMAND, campaign, name, "removed", by)


def are_full(fleet: Sequence[EngineRecord]) -> bool:
    """Whether each engine that takes requests holds KV_FULL of its KV cache. One that does not tell
    may have room."""
    up = [member for member in fleet if not (member.draining or member.is_lost)]
    return bool(up) and all((member.kv_used or 0.0) >= KV_FULL for member in up)


def find(campaign: CampaignId, fleet: Sequence[EngineRecord], name: str) -> EngineRecord:
    """The member with that name or address. Raises UsageError."""
    for member in fleet:
        if name.rstrip("/") in (member.name, member.url):
            return member
    known = ", ".join(member.name for member in fleet) or "none"
    raise UsageError(
        f"campaign {campaign} has no engine {name}",
        remedy=f"its engines: {known} (`mainspring engine list {campaign}`)",
    )


async def _members(
    connection: AsyncConnection, campaign: CampaignId, urls: Sequence[str]
) -> list[EngineRecord]:
    rows = await connection.execute(select(*_FIELDS).where(EngineRow.campaign_id == campaign))
    stored = [EngineRecord(*row) for row in rows]
    fleet = [each for each in stored if each.origin is not EngineOrigin.LISTED or each.url in urls]
    known = {each.url for each in fleet}
    fleet += [listed(url) for url in dict.fromkeys(urls) if url not in known]
    return sorted(fleet, key=lambda each: each.name)


def _refuse_taken(campaign: CampaignId, taken: str, taken_url: str, name: str, url: str) -> None:
    if taken == name:
        raise UsageError(
            f"campaign {campaign} has an engine {name} already, at {taken_url}",
            remedy="give this one another --name, or remove the other: "
            f"`mainspring engine remove {campaign} {name}`",
        )
    if same_address(taken_url, url):
        raise UsageError(
            f"{url} is the address of engine {taken} of campaign {campaign} already",
            remedy="give this engine an address of its own; one that other hosts reach is not "
            "127.0.0.1 (--address)",
        )


async def _lock(connection: AsyncConnection, campaign: CampaignId) -> None:
    """Two that join at once are one after the other."""
    name = func.hashtext(f"engines/{campaign}")
    await connection.execute(select(func.pg_advisory_xact_lock(name)))


def _row(
    campaign: CampaignId, name: str, url: str, origin: EngineOrigin, by: str = ""
) -> dict[str, object]:
    return {
        "campaign_id": campaign,
        "name": name,
        "url": url,
        "origin": origin,
        "life": "",
        "added_by": by,
    }


def _seen(look: EngineLook) -> dict[str, object]:
    if look.fault:
        return {"fault": look.fault}
    return {
        "seen_at": func.now(),
        "fault": "",
        "version": look.version,
        "model": look.model,
        "vocab_size": look.vocab_size,
        "num_running": look.num_running,
        "num_waiting": look.num_waiting,
        "kv_used": look.kv_used,
    }
