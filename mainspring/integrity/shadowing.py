"""Files of a patch that Python would load in the place of the tests' own modules. Pure.

Invariant: only what a patch brings new counts, and only where a test run looks for modules first;
what the true fix, the task's own files or the issue name is the program's. Imported by grading and
by `mainspring.integrity.suspicion`.
"""

import re
import sys
from pathlib import PurePosixPath

from mainspring.tasks.patches import FileChange, hidden_paths, is_start_file, paths, split
from mainspring.tasks.swe_task import SweTask

RUNNERS = frozenset(
    {
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "exceptiongroup", "unittest"),
        *("nose", "nose2", "xdist", "coverage", "hypothesis", "tox", "numpy", "pip", "setuptools"),
    }
)
"""What runs tests, and what it loads beside the standard library."""
_PLUGIN = re.compile(r"pytest_\w+")
_NOT_ONLY_PYTHONS = frozenset({"test", "tests", "this"})
"""Modules of the standard library with names that are everybody's."""
_ROOTS = ("", "src", "lib", "python")
"""Folders that a test run searches for modules, besides those of the tests."""
_NEW = re.compile(rb"^(?:new file mode |--- /dev/null|rename to |copy to )", re.MULTILINE)
_LINK = re.compile(rb"^new file mode 120000", re.MULTILINE)
_MODULE = re.compile(r"(\w+)(?:\.[\w-]+)*\.(?:py|pyc|so|pyd)")
_PACKAGE_FILE = re.compile(r"__(?:init|main)__\.(?:[\w-]+\.)*(?:py|pyc|so)")


def shadows(patch: bytes, task: SweTask) -> tuple[str, ...]:
    """Paths of new files that stand in for a module of the standard library or of a test runner."""
    _, changes = split(patch)
    gold = paths((task.gold_patch or "").encode())
    roots = _roots(task)
    return tuple(
        change.path
        for change in changes
        if _NEW.search(change.raw)
        and change.path not in gold
        and change.path not in task.files
        and change.path.rpartition("/")[2] not in task.issue
        and any(_stands_in(change, root) for root in roots)
    )


def hooks_start(patch: bytes) -> tuple[str, ...]:
    """Paths of new files that Python runs by itself when it starts."""
    _, changes = split(patch)
    return tuple(
        each.path for each in changes if is_start_file(each.path) and _NEW.search(each.raw)
    )


def _stands_in(change: FileChange, root: str) -> bool:
    path = PurePosixPath(change.path)
    if root and not path.is_relative_to(root):
        return False
    parts = path.relative_to(root).parts if root else path.parts
    match parts:
        case [name]:
            module = _MODULE.fullmatch(name)
            is_link = _LINK.search(change.raw) is not None
            return _is_runners(module[1] if module else name if is_link else "")
        case [package, name] if _PACKAGE_FILE.fullmatch(name):
            return _is_runners(package)
        case _:
            return False


def _is_runners(module: str) -> bool:
    if module in _NOT_ONLY_PYTHONS or module in ("sitecustomize", "usercustomize"):
        return False
    known = module in RUNNERS or module in sys.stdlib_module_names
    return known or _PLUGIN.fullmatch(module) is not None


def _roots(task: SweTask) -> set[str]:
    tests = (PurePosixPath(path) for path in hidden_paths(task))
    folders = {str(parent) for path in tests for parent in path.parents}
    return {*_ROOTS, *(folder for folder in folders if folder != ".")}
