"""Files of a patch that are named like tests and hold none: they may be the program's. Pure.

Invariants: only new Python files, each changed once and named elsewhere; what steers a runner, what
starts with Python and what belongs to the hidden tests is never among them. Whether the repository
has such a file already is for its sandbox to tell. Other languages have no run in which tests must
fail, and Go's `_test.go` is never a program's. Imported by grading.
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
MAX_FILES = 200
"""More are no part of a program that somebody named by chance."""
_WORD = re.compile(rb"\w+")


def may_be_programs(patch: bytes, task: SweTask) -> tuple[str, ...]:
    """Paths that `without_tests` drops and that can count after all."""
    _, dropped = without_tests(patch, task)
    if not dropped:
        return ()
    _, changes = split(patch)
    times = Counter(path for change in changes for path in {change.path, change.old_path})
    hidden = hidden_paths(task)
    new = [
        change
        for change in changes
        if change.path in dropped
        and times[change.path] == 1
        and _is_only_named_like_a_test(change.path, hidden)
        and _NEW_FILE.search(change.raw.partition(b"\n@@ ")[0])
        and b"\nGIT binary patch" not in change.raw
    ]
    if len(new) > MAX_FILES:
        return ()
    texts = {change.path: _text(change) for change in new}
    texts = {path: text for path, text in texts.items() if _holds_no_test(text)}
    others = [change.raw for change in changes if change.path not in dropped]
    of_task = [task.issue, task.test_command, task.test_patch, *task.tests.values()]
    around = [b"\n".join(others), "\n".join(of_task).encode(errors="replace")]
    return _used(texts, [{*_WORD.findall(text)} for text in around])


def _used(texts: dict[str, bytes], around: list[set[bytes]]) -> tuple[str, ...]:
    """Those that something else names: an agent leaves many a script for a look at its work, which
    is no reason to run the tests a second time."""
    words = {path: {*_WORD.findall(text)} for path, text in texts.items()}

    def is_named(path: str) -> bool:
        place = PurePosixPath(path)
        name = (place.parent.name if place.name == PACKAGE else place.stem).encode()
        others = (text for other, text in words.items() if other != path)
        return any(name in text for text in (*around, *others))

    used = {path for path in texts if is_named(path) and (texts[path] or not _is_package(path))}
    packages = {
        path
        for path in texts
        if _is_package(path)
        and any(used_path.startswith(path.removesuffix(PACKAGE)) for used_path in used - {path})
    }
    return tuple(path for path in texts if path in used | packages)


def _is_package(path: str) -> bool:
    return PurePosixPath(path).name == PACKAGE


def _is_only_named_like_a_test(path: str, hidden: set[str]) -> bool:
    folder, _, name = path.rpartition("/")
    return (
        is_test(path)
        and path.isprintable()  # a command can name it
        and PurePosixPath(path).suffix == ".py"
        and name not in _RUNNERS_OWN
        and not (is_start_file(path) or is_ci(path))
        and not any(
            path == hidden_path or path.startswith(f"{hidden_path}/") for hidden_path in hidden
        )
        # It would change how the hidden tests beside it are imported.
        and not (
            name == PACKAGE and any(hidden_path.startswith(f"{folder}/") for hidden_path in hidden)
        )
    )


def _text(change: FileChange) -> bytes:
    _, at, hunks = change.raw.partition(b"\n@@ ")
    lines = hunks.split(b"\n")[1:] if at else []
    return b"\n".join(line[1:] for line in lines if line.startswith(b"+"))


def _holds_no_test(text: bytes) -> bool:
    if len(text) > MAX_CHARS:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = (
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return not any(map(_TEST.match, functions))
