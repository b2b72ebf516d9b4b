"""Tasks as stored: the listing order is the order in which they were first put.

Invariant: a task never changes under its id; changed content needs another id.
"""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import ARRAY, Text, any_, func, insert, literal, select, text

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.models import TaskRow
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.tasks import Task

_NUM_NAMED = 5
"""Ids named in an error; more would hide the message."""


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
