"""Importing: what a source yields goes into the store, row by row, and every row's end is counted.

Invariants: a failed row keeps no other from being stored; what is stored stays when the rest cannot
be read; importing again changes nothing. Imported by the command line.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from infra.db.database import Database
from infra.db.tasks import task_removal
from infra.db.tasks.tasks import UNSTORABLE, ImportFate, import_tasks
from infra.sources.protocol import Place, RowError, RowProblem, SourceRow
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.swe_task import SweTask

ROWS_AT_ONCE = 64
"""Stored in one transaction; few enough for the progress to be seen."""
_FAILED = {
    ImportFate.OTHER_CONTENT: RowError(
        RowProblem.OTHER_CONTENT,
        "its id is stored with other content",
        remedy="an unused task is replaced with --replace; else, or for one of "
        "another source or split, choose another id: --id-prefix",
    ),
    ImportFate.IN_USE: RowError(
        RowProblem.OTHER_CONTENT,
        "its id is stored with other content, and a campaign has used it",
        remedy="a used task cannot change: choose another id with --id-prefix",
    ),
    ImportFate.NOT_STORABLE: RowError(
        RowProblem.NOT_STORABLE,
        f"it {UNSTORABLE}",
        remedy="leave binary files out of `files` and `tests`, or use an image",
    ),
}


@dataclass(frozen=True, slots=True)
class FailedRow:
    place: Place
    id: str
    error: RowError

    def __str__(self) -> str:
        """On one line that every terminal can print: ids and field names are a file's words."""
        line = f"{self.place} {self.id or '-'}: {self.error.message}"
        line = f"{line} ({self.error.remedy})" if self.error.remedy else line
        return re.sub(r"\s+", " ", line).encode(errors="backslashreplace").decode()


@dataclass(slots=True)
class ImportReport:
    num_new: int = 0
    num_same: int = 0
    num_replaced: int = 0
    failed: list[FailedRow] = field(default_factory=list)
    splits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Tasks new or stored before, by source and split."""
    with_tests: set[tuple[str, str]] = field(default_factory=set)
    """Sources and splits with tasks that can be verified."""

    @property
    def num_rows(self) -> int:
        return self.num_new + self.num_same + self.num_replaced + len(self.failed)


async def import_rows(
    database: Database,
    rows: Iterable[SourceRow],
    on_progress: Callable[[ImportReport], None],
    *,
    replace: bool = False,
) -> ImportReport:
    """Raises what the source raises; what came before it is stored. `replace` gives stored tasks
    that nothing has used the content of their row."""
    report = ImportReport()
    first: dict[str, tuple[Place, str]] = {}
    pending = (_once(row, first) for row in rows)
    while batch := list(islice(pending, ROWS_AT_ONCE)):
        tasks = [row.result for row in batch if isinstance(row.result, AnyTask)]
        first_fates = await import_tasks(database, tasks)
        fates = iter(await _replaced(database, tasks, first_fates) if replace else first_fates)
        for row in batch:
            if isinstance(row.result, RowError):
                report.failed.append(FailedRow(row.place, row.id, row.result))
            elif (fate := next(fates)) in _FAILED:
                report.failed.append(FailedRow(row.place, row.id, _FAILED[fate]))
            else:
                report.num_new += fate is ImportFate.NEW
                report.num_same += fate is ImportFate.SAME
                report.num_replaced += fate is ImportFate.REPLACED
                report.splits[row.result.source, row.result.split] += 1
                if isinstance(row.result, SweTask):
                    report.with_tests.add((row.result.source, row.result.split))
        on_progress(report)
    return report


def _once(row: SourceRow, first: dict[str, tuple[Place, str]]) -> SourceRow:
    """The row, or its error where an earlier one (`first`: place and content by id) has its id and
    other content. Neither order nor --replace decides which of them is the task."""
    if not isinstance(row.result, AnyTask):
        return row
    content = row.result.content_hash
    place, first_content = first.setdefault(row.result.id, (row.place, content))
    if first_content == content:
        return row
    error = RowError(
        RowProblem.OTHER_CONTENT,
        f"its id stands twice in this import: {place} has it with other content",
        remedy="give each task an id of its own",
    )
    return SourceRow(row.place, row.id, error)


async def _replaced(
    database: Database, tasks: Sequence[AnyTask], fates: Sequence[ImportFate]
) -> list[ImportFate]:
    """The fates after those with other content were replaced. Source and split are a task's place:
    a row of another one does not replace it."""
    changed = [t for t, fate in zip(tasks, fates, strict=True) if fate is ImportFate.OTHER_CONTENT]
    replaced, used = await task_removal.replace(database, changed)
    new_fates: list[ImportFate] = []
    for task, fate in zip(tasks, fates, strict=True):
        if fate is ImportFate.OTHER_CONTENT and task.id in used:
            fate = ImportFate.IN_USE
        elif fate is ImportFate.OTHER_CONTENT and task.id in replaced:
            fate = ImportFate.REPLACED
        new_fates.append(fate)
    return new_fates


def selected(
    rows: Iterable[SourceRow], pattern: re.Pattern[str] | None, limit: int | None
) -> Iterator[SourceRow]:
    """The first `limit` rows whose id `pattern` is found in. A row without an id is never filtered
    away: it would be missed."""
    chosen = (row for row in rows if pattern is None or not row.id or pattern.search(row.id))
    return islice(chosen, limit)
