"""Writing the rows of an archived run back: its own row first, marked, then the rest.

Invariants: nothing uses a run while it has the mark; what is written twice is written
once, so that an interrupted restore is repeated; a stored task is never given other content; a run
that was deleted meanwhile gets no more rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from infra.db.database import Database
from infra.db.runs import campaign_rows
from infra.db.runs.campaign_rows import PlainTable
from infra.db.runs.campaigns import refuse_incomplete
from infra.db.tables.models import CampaignRow, GroupRow, PolicyVersionRow, RolloutRow, TaskRow
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import Incomplete

_LOCK_TASKS = text("LOCK TABLE tasks IN SHARE ROW EXCLUSIVE MODE")


async def refuse_stored(db: Database, campaign: CampaignId, uid: str) -> None:
    """Refuse a run that is stored, or whose name another one has. One that an interrupted restore
    left is not stored. Raises UsageError."""
    async with db.transaction() as connection:
        result = await connection.execute(
            select(CampaignRow.uid, CampaignRow.incomplete).where(CampaignRow.id == campaign)
        )
        row = result.one_or_none()
    if row is None:
        return
    if row.incomplete is Incomplete.DELETING:
        refuse_incomplete(campaign, row.incomplete)
    if row.uid != uid:
        raise UsageError(
            f"another run called {campaign} is stored",
            remedy="restore into a home of its own (--home), or archive and delete the stored one",
        )
    if row.incomplete is None:
        raise UsageError(
            f"{campaign} is stored already: it is the run of this archive",
            remedy=f"see it with `mainspring campaign show {campaign}`",
        )


async def refuse_other_tasks(db: Database, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse tasks that are stored with other content. Raises UsageError."""
    hashes = {row["id"]: row["content_hash"] for row in rows}
    async with db.transaction() as connection:
        stored = await connection.execute(
            select(TaskRow.id, TaskRow.content_hash).where(
                campaign_rows.are(TaskRow.id, list(hashes))
            )
        )
        changed = sorted(id for id, content in stored if content != hashes[id])
    if changed:
        raise UsageError(
            f"task {changed[0]} is stored with other content than in the archive"
            + (f", and {len(changed) - 1} more are" if len(changed) > 1 else ""),
            remedy="restore into a home of its own (--home)",
        )


async def refuse_absent_sources(db: Database, rollouts: Sequence[str]) -> None:
    """Refuse rollouts whose patch was graded and which are not stored. Raises UsageError."""
    if absent := await _absent(db, RolloutRow.id, rollouts):
        raise UsageError(
            f"it grades patches of {absent[0].partition('/')[0]}, and rollout {absent[0]} is not "
            "stored",
            remedy="restore that run first",
        )


async def refuse_absent_groups(db: Database, campaign: CampaignId, groups: Sequence[str]) -> None:
    """Refuse batches of another campaign's groups which are not stored. Raises UsageError."""
    of_others = [group for group in groups if group.partition("/")[0] != campaign]
    if absent := await _absent(db, GroupRow.id, of_others):
        raise UsageError(
            f"it trains batches of {absent[0].partition('/')[0]}, and group {absent[0]} is not "
            "stored",
            remedy="restore that campaign first",
        )


async def _absent(
    db: Database, column: InstrumentedAttribute[str], ids: Sequence[str]
) -> list[str]:
    """Those of `ids` that no row has, in order."""
    async with db.transaction() as connection:
        stored = await connection.scalars(select(column).where(campaign_rows.are(column, ids)))
        return sorted(set(ids) - set(stored))


async def put_tasks(db: Database, table: PlainTable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store what is not stored; a task whose place is taken goes to the end of its split."""
    async with db.transaction() as connection:
        await connection.execute(_LOCK_TASKS)
        stored = set(
            await connection.scalars(
                select(TaskRow.id).where(campaign_rows.are(TaskRow.id, [r["id"] for r in rows]))
            )
        )
        for row in rows:
            if row["id"] not in stored:
                place = await _place(connection, row)
                await campaign_rows.write(connection, table, [{**row, "position": place}])


async def _place(connection: AsyncConnection, row: Mapping[str, Any]) -> int:
    of_split = (TaskRow.source == row["source"]) & (TaskRow.split == row["split"])
    holder = await connection.scalar(
        select(TaskRow.id).where(of_split, TaskRow.position == row["position"])
    )
    if holder is None:
        return row["position"]
    last = await connection.scalar(select(func.max(TaskRow.position)).where(of_split))
    return (last or 0) + 1


async def begin(db: Database, table: PlainTable, row: Mapping[str, Any]) -> None:
    """Store the run's own row, marked."""
    marked = {**row, campaign_rows.INCOMPLETE: Incomplete.RESTORING.value}
    async with db.transaction() as connection:
        await campaign_rows.write(connection, table, [marked])


async def put(
    db: Database,
    table: PlainTable,
    campaign: CampaignId,
    uid: str,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Store some rows of the run. Raises UsageError when it was deleted meanwhile."""
    async with db.transaction() as connection:
        mark = await connection.scalar(
            select(CampaignRow.incomplete)
            .where(CampaignRow.id == campaign, CampaignRow.uid == uid)
            .with_for_update(read=True, key_share=True)
        )
        if mark is None or mark is Incomplete.DELETING:
            raise UsageError(
                f"{campaign} was deleted, or restored by another command, in the meantime",
                remedy="look with `mainspring campaign list`, then repeat the command if it is not "
                "there",
            )
        await campaign_rows.write(connection, table, rows)


async def complete(
    db: Database, campaign: CampaignId, uid: str, moved: tuple[str, str] | None = None
) -> None:
    """Take the mark away: the run is whole. `moved`: the folder that its versions' paths are in,
    and the one that they are to be in."""
    async with db.transaction() as connection:
        if moved is not None:
            await move_paths(connection, *moved, campaign=campaign)
        await connection.execute(
            update(CampaignRow)
            .where(
                CampaignRow.id == campaign,
                CampaignRow.uid == uid,
                CampaignRow.incomplete == Incomplete.RESTORING,
            )
            .values(incomplete=None)
        )


async def move_paths(
    connection: AsyncConnection, old: str, new: str, campaign: CampaignId | None = None
) -> None:
    """Versions whose files are in folder `old` have them in `new` from here on: of one campaign, or
    of all."""
    for column in (PolicyVersionRow.path, PolicyVersionRow.checkpoint):
        statement = update(PolicyVersionRow).where(column.startswith(f"{old}/", autoescape=True))
        if campaign is not None:
            statement = statement.where(PolicyVersionRow.campaign_id == campaign)
        rest = func.substr(column, len(old) + 1)
        await connection.execute(statement.values({column: func.concat(new, rest)}))
