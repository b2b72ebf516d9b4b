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


async def chosen_split(db: Database, source: str, given: str | None) -> str:
    """`given`, or the only split of `source`. Raises UsageError."""
    if source == BUNDLED:
        if given is None:
            raise _ambiguous(source, list(SPLITS))
        return given
    stored = await tasks.list_splits(db)
    sizes = {each.split: each.num_tasks for each in stored if each.source == source}
    if given in sizes:
        return given
    if not sizes:
        known = list(dict.fromkeys(each.source for each in stored))
        raise UsageError(
            f"no tasks of source {source!r} are stored"
            + (f"; stored sources: {', '.join(known[:NUM_LISTED])}" if known else ""),
            remedy="import tasks with `mainspring tasks import`, or correct --source",
        )
    listed = [f"{split} {number}" for split, number in sizes.items()]
    if given is not None:
        raise UsageError(
            f"source {source!r} has no tasks in split {given!r}; splits: {', '.join(listed)}",
            remedy="correct --split",
        )
    if len(sizes) > 1:
        raise _ambiguous(source, listed)
    return next(iter(sizes))


def _ambiguous(source: str, listed: list[str]) -> UsageError:
    return UsageError(
        f"source {source!r} has several splits: {', '.join(listed)}", remedy="choose one: --split"
    )
