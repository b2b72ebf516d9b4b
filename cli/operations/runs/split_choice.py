"""Which split of a task set a command means, so that all commands mean the same one.

Invariant: there is no default split. A set with one split needs no `--split`; of several, one must
be given, and the error lists them. Imported by the commands that go over one split.
"""

from cli.operations.runs.campaign_launch import SPLITS
from infra.db.database import Database
from infra.db.tasks import tasks
from mainspring.config.section import BUNDLED
from mainspring.errors import UsageError

NUM_LISTED = 10
"""Task sets named in an error; more would hide the message."""


async def chosen_split(db: Database, source: str, choice: str | None) -> str:
    """`choice`, or the only split of `source`. Raises UsageError."""
    if source == BUNDLED:
        if choice is None:
            raise _ambiguous(source, list(SPLITS))
        return choice
    stored = await tasks.list_splits(db)
    sizes = {row.split: row.num_tasks for row in stored if row.source == source}
    if choice in sizes:
        return choice
    if not sizes:
        sources = list(dict.fromkeys(row.source for row in stored))
        raise UsageError(
            f"no tasks of source {source!r} are stored"
            + (f"; stored sources: {', '.join(sources[:NUM_LISTED])}" if sources else ""),
            remedy="import tasks with `mainspring tasks import`, or correct --source",
        )
    listed = [f"{split} {number}" for split, number in sizes.items()]
    if choice is not None:
        raise UsageError(
            f"source {source!r} has no tasks in split {choice!r}; splits: {', '.join(listed)}",
            remedy="correct --split",
        )
    if len(sizes) > 1:
        raise _ambiguous(source, listed)
    return next(iter(sizes))


def _ambiguous(source: str, listed: list[str]) -> UsageError:
    return UsageError(
        f"source {source!r} has several splits: {', '.join(listed)}", remedy="choose one: --split"
    )
