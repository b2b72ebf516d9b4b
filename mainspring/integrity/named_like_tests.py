"""Files of a patch that are named like tests and hold none: they may be the program's. Pure.

Invariants: only new Python files, each changed once; what steers a runner, starts with Python or
belongs to the hidden tests is never among them. Whether the repository has such a file already is
for its sandbox to tell. Other languages have no run in which tests must fail, and Go's `_test.go`
is never a program's. Imported by grading.
"""

import ast
import re
from collections import Counter
from pathlib import PurePosixPath

from mainspring.integrity.canary import MAX_CHARS
from mainspring.tasks.patches import (
    FileChange,
    hidden_paths,
    is_ci,
    is_start_file,
    is_test,
    split,
    without_tests,
)
from mainspring.tasks.swe_task import SweTask

_NEW_FILE = re.compile(rb"^new file mode 100(?:644|755)$", re.MULTILINE)
_TEST = re.compile(r"test|runTest$")
_RUNNERS_OWN = frozenset({"conftest.py", "noxfile.py"})
PACKAGE = "__init__.py"


def may_be_programs(patch: bytes, task: SweTask) -> tuple[str, ...]:
    """Of the paths that `without_tests` drops, those that can count after all."""
    _, dropped = without_tests(patch, task)
    if not dropped:
        return ()
    _, changes = split(patch)
    times = Counter(path for change in changes for path in {change.path, change.old_path})
    hidden = hidden_paths(task)
    return tuple(
        change.path
        for change in changes
        if change.path in dropped
        and times[change.path] == 1
        and _is_only_named_like_a_test(change.path, hidden)
        and _is_new_without_tests(change)
    )


def _is_only_named_like_a_test(path: str, hidden: set[str]) -> bool:
    folder, _, name = path.rpartition("/")
    return (
        is_test(path)
        and path.isprintable()  # a command can name it
        and PurePosixPath(path).suffix == ".py"
        and name not in _RUNNERS_OWN
        and not (is_start_file(path) or is_ci(path))
        and not any(path == each or path.startswith(f"{each}/") for each in hidden)
        # It would change how the hidden tests beside it are imported.
        and not (name == PACKAGE and any(each.startswith(f"{folder}/") for each in hidden))
    )


def _is_new_without_tests(change: FileChange) -> bool:
    header, at, hunks = change.raw.partition(b"\n@@ ")
    if b"\nGIT binary patch" in change.raw or not _NEW_FILE.search(header):
        return False
    lines = hunks.split(b"\n")[1:] if at else []
    text = b"\n".join(line[1:] for line in lines if line.startswith(b"+"))
    if len(text) > MAX_CHARS:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return not any(
        isinstance(each, functions) and _TEST.match(each.name) for each in ast.walk(tree)
    )
