"""Tasks as stored: the listing order is the order in which they were first put.

Invariants: a task never changes under its id; changed content needs another id. Putting the same
task again changes nothing, whatever way of hashing it was stored with.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from sqlalchemy import ARRAY, ColumnElement, Text, any_, case, func, insert, literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.database import Database
from infra.db.fence import unknown
from infra.db.tables.models import TaskRow
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.tasks.any_task import AnyTask, read_task
from mainspring.tasks.swe_task import SWE

_NUM_NAMED = 5
"""Ids named in an error; more would hide the message."""
UNSTORABLE = "holds what Postgres cannot store: NUL, half a surrogate pair or no finite number"
_IMAGE = TaskRow.spec["image"].astext
_JUDGE = TaskRow.spec["judge"]
KIND = func.coalesce(TaskRow.spec["kind"].astext, SWE)
"""Kind of its environment; tasks that were stored before there were others have none."""


class ImportFate(StrEnum):
    """Outcome of one task of an import."""

    NEW = "new"
    """It is stored now."""
    SAME = "same"
    """It was stored before."""
    OTHER_CONTENT = "other_content"
    """Its id is another task's, which stays."""
    REPLACED = "replaced"
    """It has taken the place of other content that nothing had used."""
    IN_USE = "in_use"
    """Its id is another task's, which a campaign has used and which stays."""
    NOT_STORABLE = "notis_storable"
    """It holds a character or a number that Postgres cannot."""


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


@dataclass(frozen=True, slots=True)
class TaskSummary:
    id: TaskId
    split: str
    image: str | None
    judge: str
    """Its kind; of a task of another kind than "swe", the task's."""
    num_tests: int
    """Named tests that decide, or else files of tests."""


async def put_tasks(db: Database, tasks: Sequence[AnyTask]) -> int:
    """Store the tasks that are new; how many were. All or none: raises UsageError when an id is
    taken by other content."""
    by_id = {task.id: task for task in tasks}
    hashes = _checked_hashes(tasks)
    async with db.transaction() as connection:
        stored = await _locked(connection, hashes)
        changed = sorted(id for id, content_hash in stored.items() if content_hash != hashes[id])
        if changed:
            raise UsageError(
                f"{len(changed)} tasks are stored with other content: {_named(changed)}",
                remedy="a changed task needs another id",
            )
        new = {id: task for id, task in by_id.items() if id not in stored}
        await _insert(connection, new, hashes)
    return len(new)


async def import_tasks(db: Database, tasks: Sequence[AnyTask]) -> list[ImportFate]:
    """Store each task for itself: the fates of all of them, in their order."""
    hashes = [task.content_hash if is_storable(task) else None for task in tasks]
    fates: list[ImportFate] = []
    new: dict[TaskId, AnyTask] = {}
    async with db.transaction() as connection:
        pairs = zip(tasks, hashes, strict=True)
        stored = await _locked(
            connection, {task.id: digest for task, digest in pairs if digest is not None}
        )
        for task, content_hash in zip(tasks, hashes, strict=True):
            if content_hash is None:
                fates.append(ImportFate.NOT_STORABLE)
            elif task.id not in stored:
                stored[task.id] = content_hash
                new[task.id] = task
                fates.append(ImportFate.NEW)
            else:
                fates.append(
                    ImportFate.SAME if stored[task.id] == content_hash else ImportFate.OTHER_CONTENT
                )
        await _insert(connection, new, stored)
    return fates


async def get_task(db: Database, task: TaskId) -> AnyTask:
    """The task. Raises UnknownId."""
    async with db.transaction() as connection:
        spec = await connection.scalar(select(TaskRow.spec).where(TaskRow.id == task))
    if spec is None:
        raise unknown("task", task)
    return read_task(spec)


async def get_some(db: Database, ids: Collection[TaskId]) -> list[AnyTask]:
    """Tasks with these ids, in the order of the ids; those that are not stored are left out."""
    async with db.transaction() as connection:
        specs = await connection.scalars(
            select(TaskRow.spec).where(TaskRow.id.in_(ids)).order_by(TaskRow.id)
        )
        return [read_task(spec) for spec in specs]


async def get_tasks(db: Database, source: str, split: str | None) -> list[AnyTask]:
    """Tasks in listing order; of all splits when `split` is None."""
    async with db.transaction() as connection:
        specs = await connection.scalars(
            select(TaskRow.spec)
            .where(*_of(source, split))
            .order_by(TaskRow.split, TaskRow.position)
        )
        return [read_task(spec) for spec in specs]


async def summaries(db: Database, source: str, split: str | None) -> list[TaskSummary]:
    """Summaries of tasks in listing order; of all splits when `split` is None."""
    num_tests = func.coalesce(func.jsonb_array_length(_JUDGE["fail_to_pass"]), 0) + func.coalesce(
        func.jsonb_array_length(_JUDGE["pass_to_pass"]), 0
    )
    files = select(func.count()).select_from(func.jsonb_object_keys(TaskRow.spec["tests"]).alias())
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(
                TaskRow.id,
                TaskRow.split,
                _IMAGE,
                case((KIND == SWE, func.coalesce(_JUDGE["kind"].astext, "exit_code")), else_=KIND),
                func.coalesce(func.nullif(num_tests, 0), files.scalar_subquery()),
            )
            .where(*_of(source, split))
            .order_by(TaskRow.split, TaskRow.position)
        )
        return [TaskSummary(*row) for row in rows]


async def task_ids(
    db: Database, source: str, split: str, *, limit: int | None = None
) -> list[TaskId]:
    """Ids of tasks in listing order; the first `limit`."""
    async with db.transaction() as connection:
        ids = await connection.scalars(
            select(TaskRow.id)
            .where(TaskRow.source == source, TaskRow.split == split)
            .order_by(TaskRow.position)
            .limit(limit)
        )
        return [TaskId(id) for id in ids]


async def ids_of_other_kinds(db: Database, source: str, split: str, kind: str) -> frozenset[TaskId]:
    """Ids of tasks of the split that are not of `kind`."""
    async with db.transaction() as connection:
        ids = await connection.scalars(
            select(TaskRow.id).where(*_of(source, split), KIND.is_distinct_from(kind))
        )
        return frozenset(map(TaskId, ids))


async def list_splits(db: Database) -> list[Split]:
    """Numbers of stored tasks, by source and split."""
    async with db.transaction() as connection:
        rows = await connection.execute(
            select(TaskRow.source, TaskRow.split, func.count(), func.count(_IMAGE))
            .group_by(TaskRow.source, TaskRow.split)
            .order_by(TaskRow.source, TaskRow.split)
        )
        return [Split(*row) for row in rows]


async def known_source(db: Database, source: str, split: str | None = None) -> None:
    """Check that a source or split has tasks. Raises UsageError, which lists what is stored, for a
    source or split without tasks."""
    splits = await list_splits(db)
    of_source = [row.split for row in splits if row.source == source]
    if of_source and split in (None, *of_source):
        return
    if of_source:
        raise UsageError(
            f"source {source!r} has no tasks in split {split!r}",
            remedy=f"its splits: {', '.join(of_source)}",
        )
    names = list(dict.fromkeys(row.source for row in splits))
    near = get_close_matches(source, names, 1)
    raise UsageError(
        f"no tasks of source {source!r} are stored"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        remedy=f"stored sources: {_named(sorted(names))}"
        if names
        else "import tasks first: `mainspring tasks import`",
    )


async def list_images(
    db: Database,
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
    async with db.transaction() as connection:
        rows = await connection.execute(query.group_by(_IMAGE).order_by(*order))
        return [TaskImage(*row) for row in rows]


async def _locked(connection: AsyncConnection, hashes: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """The content hashes of those that are stored, as hashes are made today, and no other put until
    the end. `hashes` are those to compare with."""
    # Positions count up per split, so two puts at once must take turns.
    await connection.execute(text("LOCK TABLE tasks IN SHARE ROW EXCLUSIVE MODE"))
    stored_hashes = {
        TaskId(row.id): row.content_hash
        for row in await connection.execute(
            select(TaskRow.id, TaskRow.content_hash).where(_is_one_of(hashes))
        )
    }
    # A row's hash may have been made another way: then its content is what counts.
    changed = [id for id, content_hash in stored_hashes.items() if content_hash != hashes[id]]
    if changed:
        specs = await connection.scalars(select(TaskRow.spec).where(_is_one_of(changed)))
        stored = map(read_task, specs)
        stored_hashes |= {task.id: task.content_hash for task in stored}
    return stored_hashes


def _is_one_of(ids: Iterable[TaskId]) -> ColumnElement[bool]:
    return TaskRow.id == any_(literal(list(ids), ARRAY(Text)))


async def _insert(
    connection: AsyncConnection, tasks: Mapping[TaskId, AnyTask], hashes: Mapping[TaskId, str]
) -> None:
    sizes: Counter[tuple[str, str]] = Counter()
    for row in await connection.execute(
        select(TaskRow.source, TaskRow.split, func.count()).group_by(TaskRow.source, TaskRow.split)
    ):
        sizes[row[0], row[1]] = row[2]
    rows = []
    for id, task in tasks.items():
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


def _of(source: str, split: str | None) -> list[ColumnElement[bool]]:
    conditions = [TaskRow.source == source]
    return conditions if split is None else [*conditions, TaskRow.split == split]


def _checked_hashes(tasks: Sequence[AnyTask]) -> dict[TaskId, str]:
    hashes: dict[TaskId, str] = {}
    for task in tasks:
        if hashes.setdefault(task.id, task.content_hash) != task.content_hash:
            raise UsageError(f"task id {task.id} stands twice in the list, for different tasks")
        if not is_storable(task):
            raise UsageError(
                f"task {task.id} {UNSTORABLE}",
                remedy="leave binary files out of `files` and `tests`, or use an image",
            )
    return hashes


def is_storable(task: AnyTask) -> bool:
    """Whether Postgres can store it, before anything is sent there."""
    try:
        # Not in pydantic's JSON mode, which replaces what keys cannot hold without a word.
        spec = json.dumps(task.model_dump(), ensure_ascii=False, allow_nan=False)
        spec.encode()
    except ValueError:  # NaN, infinities, lone surrogates
        return False
    return r"\u0000" not in spec.replace(r"\\", "")


def _named(ids: Sequence[str]) -> str:
    more = len(ids) - _NUM_NAMED
    return ", ".join(ids[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
