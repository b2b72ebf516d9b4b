"""Bundled tasks that carry their true fix as a patch, for measuring and testing the grading.

Invariant: they have ids and a source of their own, so no campaign on bundled tasks meets a task
that knows its answer. Pure; benches and tests import it.
"""

import difflib

from bundled.generator import TaskInstance, make_instances
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask


def make_gold_tasks(seed: int, source: str, count: int) -> list[SweTask]:
    """`count` tasks with gold patches, listed under `source` in split "train"."""
    return [_with_fix(instance, source) for instance in make_instances(seed, "train", count)]


def _with_fix(instance: TaskInstance, source: str) -> SweTask:
    task, module = instance.task, instance.module
    broken = task.files[module]
    return task.model_copy(
        update={
            "id": TaskId(f"{source}-{task.id.rpartition('-')[2]}"),
            "source": source,
            "gold_patch": git_patch(module, broken, instance.fix.apply(broken)),
        }
    )


def git_patch(path: str, before: str, after: str) -> str:
    """Output of `git diff` for one changed text file."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)
