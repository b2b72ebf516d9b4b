"""From what a person typed to an id that is stored; the nearest names where there is none.

Takes ids as they stand on any screen: whole, without the campaign when that is unique, or as the
workflow's id in Temporal. Used by the command line.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from infra.db.database import Database
from infra.db.fence import UnknownId
from infra.db.runs import campaigns
from infra.db.runs.campaigns import CampaignRecord
from infra.db.tables.models import CampaignRow, RolloutRow, TaskRow
from mainspring.errors import UsageError
from mainspring.ids import CampaignId, RolloutId, TaskId

NUM_SHOWN = 5
"""Names in a message."""
MAX_COMPARED = 20_000
"""Ids that are looked through for near ones."""


async def campaign_named(db: Database, text: str) -> CampaignRecord:
    """The campaign of this name. Raises UnknownId with near names."""
    name = text.removeprefix("campaign/")
    record = await campaigns.find(db, CampaignId(name))
    if record is not None:
        return record
    async with db.transaction() as connection:
        campaign_ids = list(await connection.scalars(select(CampaignRow.id)))
    where = "`mainspring campaign list` lists them" if campaign_ids else "no campaign is stored yet"
    raise UnknownId(f"no campaign {name} is stored", remedy=_near(name, campaign_ids, where))


async def rollout_named(db: Database, text: str) -> RolloutId:
    """The rollout that this text names. Raises UnknownId with near ids, and UsageError when several
    fit."""
    name = text.removeprefix("rollout/").strip("/")
    async with db.transaction() as connection:
        if await connection.scalar(select(RolloutRow.id).where(RolloutRow.id == name)):
            return RolloutId(name)
        ids = list(
            await connection.scalars(
                select(RolloutRow.id)
                .where(RolloutRow.id.endswith(f"/{name}", autoescape=True))
                .order_by(RolloutRow.created_at.desc())
                .limit(NUM_SHOWN + 1)
            )
        )
    if len(ids) == 1:
        return RolloutId(ids[0])
    if ids:
        listed = ", ".join(ids[:NUM_SHOWN]) + (", ..." if len(ids) > NUM_SHOWN else "")
        raise UsageError(
            f"several rollouts are called {name}: {listed}",
            remedy="give the whole id, with its campaign",
        )
    async with db.transaction() as connection:
        campaign, _, rest = name.partition("/")
        own = list(
            await connection.scalars(
                select(RolloutRow.id)
                .where(RolloutRow.campaign_id == campaign)
                .order_by(RolloutRow.created_at.desc())
                .limit(MAX_COMPARED)
            )
        )
        campaign_ids = list(await connection.scalars(select(CampaignRow.id)))
    if own:
        where = f"`mainspring rollout list {campaign}` lists them"
        raise UnknownId(f"no rollout {name} is stored", remedy=_near(name, own, where))
    near = difflib.get_close_matches(campaign, campaign_ids, 1) if rest else []
    if near:
        where = f"`mainspring rollout list {near[0]}` lists that campaign's rollouts"
        raise UnknownId(
            f"no rollout {name} is stored, and no campaign {campaign}",
            remedy=f"did you mean campaign {near[0]}? {where}",
        )
    raise UnknownId(
        f"no rollout {name} is stored",
        remedy="`mainspring rollout list CAMPAIGN` lists the ids of a campaign",
    )


@dataclass(frozen=True, slots=True)
class StoredTask:
    """Where a task is listed."""

    id: TaskId
    source: str
    split: str


async def task_named(db: Database, text: str, source: str | None = None) -> StoredTask:
    """The task of this id, in `source` where one is given. Raises UnknownId with near ids, and
    UsageError when it is in another source."""
    async with db.transaction() as connection:
        found = (
            await connection.execute(
                select(TaskRow.id, TaskRow.source, TaskRow.split).where(TaskRow.id == text)
            )
        ).one_or_none()
        if found is not None and source in (None, found.source):
            return StoredTask(*found)
        if found is not None:
            raise UsageError(
                f"task {text} is in the source {found.source!r}, not in {source!r}",
                remedy="leave --source out, or correct it",
            )
        listed = select(TaskRow.id).order_by(TaskRow.source, TaskRow.split, TaskRow.position)
        if source is not None:
            listed = listed.where(TaskRow.source == source)
        ids = list(await connection.scalars(listed.limit(MAX_COMPARED)))
    where = "`mainspring tasks list SOURCE` lists the ids of a task set"
    where = where if ids else "import tasks first (`mainspring tasks import`)"
    of = "" if source is None else f" in the source {source!r}"
    raise UnknownId(f"no task {text} is stored{of}", remedy=_near(text, ids, where))


def near_names(name: str, names: Iterable[str]) -> Sequence[str]:
    """The nearest first; those that begin alike count as near."""
    names = list(names)
    close = difflib.get_close_matches(name, names, NUM_SHOWN, cutoff=0.5)
    return close or [full for full in names if name and full.startswith(name)][:NUM_SHOWN]


def _near(name: str, names: Sequence[str], where: str) -> str:
    near = near_names(name, names)
    return f"did you mean {', '.join(near)}? {where}" if near else where
