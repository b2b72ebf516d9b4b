"""Tasks as stored: the listing order is the order in which they were first put.

Invariant: a task never changes under its id; changed content needs another id.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, Text, any_, func, insert, literal, select, text

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.models import TaskRow
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.tasks import Task

_NUM_NAMED = 5
"""Ids named in an error; more would hide the message."""
_IMAGE = TaskRow.spec["image"].astext


@dataclass(frozen=True, slots=True)
class Split:
    source: str
    split: str
    num_tasks: int
    num_with_image: int


@dataclass(frozen=True, slots=True)
class TaskImage:
    image: str
    num_tasks: int


async def put_tasks(database: Database, tasks: Sequence[Task]) -> int:
    """Store the tasks that are new; how many were. All or none: raises UsageError when an id is
    taken by other content."""
    given = {task.id: task for task in tasks}
    hashes = _checked_hashes(tasks)
    async with database.transaction() as connection:
        # Positions count up per split, so two puts at once must take turns.
        await connection.execute(text("LOCK TABLE tasks IN SHARE ROW EXCLUSIVE MODE"))
        stored = {
            row.id: row.content_hash
            for row in await connection.execute(
                select(TaskRow.id, TaskRow.content_hash).where(
                    TaskRow.id == any_(literal(list(given), ARRAY(Text)))
                )
            )
        }
        changed = sorted(id for id, content_hash in stored.items() if content_hash != hashes[id])
        if changed:
            raise UsageError(
                f"{len(changed)} tasks are stored with other content: {_named(changed)}",
                remedy="a changed task needs another id",
            )
        sizes = Counter(
            {
                (row.source, row.split): row.size
                for row in await connection.execute(
                    select(TaskRow.source, TaskRow.split, func.count().label("size")).group_by(
                        TaskRow.source, TaskRow.split
                    )
                )
            }
        )
        rows = []
        for id, task in given.items():
            if id in stored:
                continue
            rows.append(
                {
                    "id": id,
                    "source": task.source,
                    "split": task.split,
                    "position": sizes[task.source, task.split],
                    "content_hash": hashes[id],
                    "spec": task.model_dump(mode="json"),
                }
            )
            sizes[task.source, task.split] += 1
        if rows:
            await connection.execute(insert(TaskRow), rows)
    return len(rows)


async def get_task(database: Database, task: TaskId) -> Task:
    """Raises UnknownId."""
    async with database.transaction() as connection:
        spec = await connection.scalar(select(TaskRow.spec).where(TaskRow.id == task))
    if spec is None:
        raise unknown("task", task)
    return Task.model_validate(spec)


async def get_tasks(database: Database, source: str, split: str) -> list[Task]:
    async with database.transaction() as connection:
        specs = await connection.scalars(
            select(TaskRow.spec)
            .where(TaskRow.source == source, TaskRow.split == split)
            .order_by(TaskRow.position)
        )
        return [Task.model_validate(spec) for spec in specs]


async def task_ids(
    database: Database, source: str, split: str, *, limit: int | None = None
) -> list[TaskId]:
    """In listing order; the first `limit`."""
    async with database.transaction() as connection:
        ids = await connection.scalars(
            select(TaskRow.id)
            .where(TaskRow.source == source, TaskRow.split == split)
            .order_by(TaskRow.position)
            .limit(limit)
        )
        return [TaskId(id) for id in ids]


async def list_splits(database: Database) -> list[Split]:
    """What is stored, by source and split."""
    async with database.transaction() as connection:
        rows = await connection.execute(
            select(TaskRow.source, TaskRow.split, func.count(), func.count(_IMAGE))
            .group_by(TaskRow.source, TaskRow.split)
            .order_by(TaskRow.source, TaskRow.split)
        )
        return [Split(*row) for row in rows]


async def list_images(
    database: Database,
    *,
    source: str | None = None,
    split: str | None = None,
    first: int | None = None,
) -> list[TaskImage]:
    """Distinct images, in the order of the tasks that name them; of each split's `first` tasks."""
    query = select(_IMAGE, func.count()).where(_IMAGE.is_not(None))
    if source is not None:
        query = query.where(TaskRow.source == source)
    if split is not None:
        query = query.where(TaskRow.split == split)
    if first is not None:
        query = query.where(TaskRow.position < first)
    order = (func.min(TaskRow.source), func.min(TaskRow.split), func.min(TaskRow.position), _IMAGE)
    async with database.transaction() as connection:
        rows = await connection.execute(query.group_by(_IMAGE).order_by(*order))
        return [TaskImage(*row) for row in rows]


def _checked_hashes(tasks: Sequence[Task]) -> dict[TaskId, str]:
    hashes: dict[TaskId, str] = {}
    for task in tasks:
        if hashes.setdefault(task.id, task.content_hash) != task.content_hash:
            raise UsageError(f"task id {task.id} stands twice in the list, for different tasks")
        texts = (task.issue, task.test_command, *task.files.values(), *task.tests.values())
        if any("\0" in text for text in texts):
            raise UsageError(
                f"task {task.id} holds a NUL character, which Postgres cannot store",
                remedy="leave binary files out of `files` and `tests`, or use an image",
            )
    return hashes


def _named(ids: list[TaskId]) -> str:
    more = len(ids) - _NUM_NAMED
    return ", ".join(ids[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
