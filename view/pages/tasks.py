"""Tasks of a run as a matrix over policy versions, and one task over all runs.

Imported by `pages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.db.naming import campaign_named, task_named
from infra.db.reading import task_results
from infra.db.reading.rollout_pages import ListedRollout
from infra.db.reading.task_results import TaskOfRun, TaskScore
from infra.db.tasks import tasks as stored_tasks
from infra.db.tasks import verifications
from mainspring.errors import UsageError
from mainspring.status import CampaignKind, Verification
from mainspring.tasks.swe_task import SweTask
from view.page import Page
from view.page_request import PageRequest
from view.pages.rollouts import common_start
from view.viewer import Viewer

ROWS = 2_000
VERSIONS = 60
"""Versions that the matrix shows, the newest ones."""
ROLLOUTS = 100


@dataclass(frozen=True, slots=True)
class MatrixRow:
    task: str
    versions: Mapping[int, TaskScore]
    learnt_at: int | None
    """The first version that resolved it; None: none did."""
    is_forgotten: bool
    """It was resolved, and not under the last version that played it."""

    @property
    def num_scored(self) -> int:
        return sum(each.num_scored for each in self.versions.values())

    @property
    def num_resolved(self) -> int:
        return sum(each.num_resolved for each in self.versions.values())


@dataclass(frozen=True, slots=True)
class TasksPage:
    campaign: str
    kind: CampaignKind
    split: str | None
    splits: Sequence[str]
    versions: Sequence[int]
    rows: Sequence[MatrixRow]
    num_tasks: int
    task_start: str


async def read_matrix(viewer: Viewer, asked: PageRequest) -> TasksPage:
    async with viewer.part("the matrix of tasks") as db:
        record = await campaign_named(db, asked.path["name"])
        async with db.snapshot() as connection:
            splits = await task_results.splits(connection, record.id)
            split = asked.query.get("split") or None
            if split is not None and split not in splits:
                raise UsageError(
                    f"{record.id} has no split {split!r}",
                    remedy=f"it has {', '.join(splits)}" if splits else "it has none yet",
                )
            found = await task_results.matrix(connection, record.id, split)
    rows = sorted(
        (_row(task, versions) for task, versions in found.items()),
        key=lambda row: (row.learnt_at is None, row.learnt_at or 0, row.task),
    )
    versions = sorted({version for row in rows for version in row.versions})[-VERSIONS:]
    return TasksPage(
        campaign=record.id,
        kind=record.kind,
        split=split,
        splits=splits,
        versions=versions,
        rows=rows[:ROWS],
        num_tasks=len(rows),
        task_start=common_start([row.task for row in rows]),
    )


def _row(task: str, versions: Mapping[int, TaskScore]) -> MatrixRow:
    scored = [version for version, each in sorted(versions.items()) if each.num_scored]
    solved = [version for version in scored if versions[version].num_resolved]
    return MatrixRow(
        task,
        versions,
        solved[0] if solved else None,
        bool(solved) and not versions[scored[-1]].num_resolved,
    )


@dataclass(frozen=True, slots=True)
class TaskPage:
    id: str
    source: str
    split: str
    kind: str
    issue: str
    image: str | None
    test_command: str
    true_fix: str | None
    verification: Verification
    runs: Sequence[TaskOfRun]
    ends: Mapping[str, int]
    rollouts: Sequence[ListedRollout]


async def read_task(viewer: Viewer, asked: PageRequest) -> TaskPage:
    async with viewer.part("the task") as db:
        where = await task_named(db, asked.path["task"])
        task = await stored_tasks.get_task(db, where.id)
        verified = await verifications.verification_of_task(db, where.id)
        async with db.snapshot() as connection:
            runs = await task_results.of_task(connection, where.id)
            ends = await task_results.ends_of_task(connection, where.id)
            rollouts = await task_results.rollouts_of_task(connection, where.id, ROLLOUTS)
    is_swe = isinstance(task, SweTask)
    return TaskPage(
        id=where.id,
        source=where.source,
        split=where.split,
        kind=task.kind,
        issue=task.issue,
        image=task.image if is_swe else None,
        test_command=task.test_command if is_swe else "",
        true_fix=task.gold_patch if is_swe else None,
        verification=verified,
        runs=runs,
        ends=ends,
        rollouts=rollouts,
    )


PAGES = (
    Page("/c/{name}/tasks", "tasks.html.j2", read_matrix),
    Page("/t/{task:whole}", "task.html.j2", read_task),
)
