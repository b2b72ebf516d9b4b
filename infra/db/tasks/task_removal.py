"""Removing tasks and replacing their content: only what no campaign has used.

Invariants: a task that a rollout, a group or a campaign's selection names stays as it is, for their
records would mean another thing afterwards; all that is asked for goes, or nothing; positions of a
split stay without gaps, since campaigns count by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Text,
    any_,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.tables.models import CampaignRow, GroupRow, RolloutRow, SelectionRow, TaskRow
from mainspring.config.section import BUNDLED
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.tasks.any_task import AnyTask

_NUM_NAMED = 5
_LOCK = text("LOCK TABLE tasks IN SHARE ROW EXCLUSIVE MODE")
"""As for puts: positions count up per split."""


@dataclass(frozen=True, slots=True)
class TaskUse:
    task: TaskId
    campaign: str
    """One of those that used it."""


async def remove(db: Database, source: str, ids: Sequence[TaskId] = ()) -> int:
    """Remove these tasks of the source, or all of it; how many there were. Raises UsageError that
    names what is not stored, or what is used."""
    async with db.transaction() as connection:
        await connection.execute(_LOCK)
        stored = set(await connection.scalars(select(TaskRow.id).where(TaskRow.source == source)))
        if absent := sorted(set(ids) - stored):
            raise UsageError(
                f"{len(absent)} tasks are not stored in source {source!r}: {_named(absent)}",
                remedy=f"see `mainspring tasks list --source {source}`",
            )
        doomed = [TaskId(id) for id in (dict.fromkeys(ids) or sorted(stored))]
        if used := await _uses(connection, doomed):
            raise UsageError(
                f"{len(used)} of {len(doomed)} tasks of source {source!r} are used: "
                + _named([f"{use.task} by campaign {use.campaign}" for use in used]),
                remedy="name unused tasks only; a used task is kept, and a corrected one "
                "needs another id (`tasks import --id-prefix`)",
            )
        await connection.execute(delete(TaskRow).where(_are(doomed)))
        await _close_gaps(connection, source)
    return len(doomed)


async def replace(
    db: Database, tasks: Sequence[AnyTask]
) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
    """Give stored tasks the content of these, each in its place of the listing: the ids of those
    that were replaced, and of those that are used and stay. One of another source or split is
    neither."""
    replaced: set[TaskId] = set()
    async with db.transaction() as connection:
        await connection.execute(_LOCK)
        used = {use.task for use in await _uses(connection, [task.id for task in tasks])}
        for task in tasks:
            if task.id not in used:
                changed = await connection.execute(
                    update(TaskRow)
                    .where(
                        TaskRow.id == task.id,
                        TaskRow.source == task.source,
                        TaskRow.split == task.split,
                    )
                    .values(content_hash=task.content_hash, spec=task.model_dump(mode="json"))
                )
                replaced |= {task.id} if changed.rowcount else set()
    return frozenset(replaced), frozenset(used)


async def _uses(connection: AsyncConnection, ids: Sequence[TaskId]) -> list[TaskUse]:
    """In the order of ids, each once. A campaign stored without a selection uses its source."""
    by_rollout = select(RolloutRow.campaign_id).where(RolloutRow.task_id == TaskRow.id)
    by_group = select(GroupRow.campaign_id).where(GroupRow.task_id == TaskRow.id)
    by_selection = select(SelectionRow.campaign_id).where(SelectionRow.task_id == TaskRow.id)
    by_listing = select(CampaignRow.id).where(
        or_(
            TaskRow.source == CampaignRow.config["tasks"]["source"].astext,
            # Generated tasks have their seed in the source's name.
            (CampaignRow.config["tasks"]["source"].astext == BUNDLED)
            & TaskRow.source.startswith(f"{BUNDLED}-"),
        ),
        ~exists().where(SelectionRow.campaign_id == CampaignRow.id),
    )
    first = func.coalesce(
        *(way.limit(1).scalar_subquery() for way in (by_rollout, by_group, by_selection)),
        by_listing.limit(1).scalar_subquery(),
    )
    ways = (by_rollout, by_group, by_selection, by_listing)
    rows = await connection.execute(
        select(TaskRow.id, first)
        .where(_are(ids), or_(*(way.exists() for way in ways)))
        .order_by(TaskRow.id)
    )
    return [TaskUse(TaskId(id), campaign) for id, campaign in rows]


async def _close_gaps(connection: AsyncConnection, source: str) -> None:
    # In two moves: no position may be taken twice, not even between two rows of one statement.
    await connection.execute(
        update(TaskRow).where(TaskRow.source == source).values(position=-1 - TaskRow.position)
    )
    before = func.row_number().over(partition_by=TaskRow.split, order_by=TaskRow.position.desc())
    places = (
        select(TaskRow.id, (before - 1).label("place")).where(TaskRow.source == source).subquery()
    )
    await connection.execute(
        update(TaskRow).where(TaskRow.id == places.c.id).values(position=places.c.place)
    )


def _are(ids: Sequence[TaskId]) -> ColumnElement[bool]:
    return TaskRow.id == any_(literal(list(ids), ARRAY(Text)))


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
