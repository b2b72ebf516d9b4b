"""Files of a patch that Python would load in the place of the tests' own modules. Pure.

Invariants: only what a patch brings new counts; what the true fix, the task's own files or the
issue name is the program's; a folder counts only where Python searches it, and a module only where
another one of its name would have been found later. Imported by grading, which asks the tests' own
Python (`import_probe.py`), and by `mainspring.integrity.suspicion`, which has the task alone.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from mainspring.artifacts.program_files import program
from mainspring.tasks.patches import FileChange, hidden_paths, is_start_file, paths, split
from mainspring.tasks.swe_task import SweTask

RUNNERS = frozenset(
    {
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "exceptiongroup", "unittest"),
        *("nose", "nose2", "xdist", "coverage", "hypothesis", "tox", "numpy", "pip", "setuptools"),
    }
)
"""Modules that run tests, and that these load beside the standard library."""
_PLUGIN = re.compile(r"pytest_\w+")
_NOT_ONLY_PYTHONS = frozenset({"test", "tests", "this"})
"""Modules of the standard library with names that are everybody's."""
_ROOTS = ("", "src", "lib", "python")
"""Folders that a test run often searches for modules, besides those of the tests."""
_NEW = re.compile(rb"^(?:new file mode |--- /dev/null|rename to |copy to )", re.MULTILINE)
_GONE = re.compile(rb"^(?:deleted file mode |\+\+\+ /dev/null)", re.MULTILINE)
_LINK = re.compile(rb"^new file mode 120000", re.MULTILINE)
_MODULE = re.compile(r"(\w+)(?:\.[\w-]+)*\.(?:py|pyc|so|pyd)")
_PACKAGE_FILE = re.compile(r"__(?:init|main)__\.(?:[\w-]+\.)*(?:py|pyc|so)")
_PROBE = program(__file__, "import_probe.py")
MAX_PROBED_CHARS = 1 << 20
"""Characters of one test file that is parsed."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A new file that has the name of a module of the standard library or of a test runner."""

    path: str
    folder: str
    """Where Python would have to search for it; "." is the repository."""
    module: str

    @property
    def is_runners(self) -> bool:
        return self.module in RUNNERS or _PLUGIN.fullmatch(self.module) is not None


def candidates(patch: bytes, task: SweTask) -> tuple[Shadow, ...]:
    """All that could stand in for another module, wherever Python searches."""
    _, changes = split(patch)
    gold = paths((task.gold_patch or "").encode())
    return tuple(
        shadow
        for change in changes
        if _NEW.search(change.raw)
        and change.path not in gold
        and change.path not in task.files
        and change.path.rpartition("/")[2] not in task.issue
        for shadow in _readings(change)
    )


def any_module(patch: bytes, admitted: frozenset[str]) -> tuple[Shadow, ...]:
    """Modules that these files of the patch could stand in for, also those of the repository."""
    _, changes = split(patch)
    admitted_changes = (change for change in changes if change.path in admitted)
    return tuple(shadow for change in admitted_changes for shadow in _all_readings(change))


def likely(patch: bytes, task: SweTask) -> tuple[Shadow, ...]:
    """Those in a folder that Python probably searches, as far as the task alone tells: a folder of
    a package is not searched, the folder above it is."""
    roots = _roots(patch, task)
    return tuple(shadow for shadow in candidates(patch, task) if shadow.folder in roots)


def probe(names: Iterable[str], out: str) -> str:
    """A program that writes where it finds these modules to the file `out`."""
    listed = repr(sorted(set(names)))
    return _PROBE.replace('["NAMES"]', listed).replace('"OUT"', repr(out))


def probed(text: str, program_path: str) -> str:
    """A test file that runs the program first."""
    if len(text) > MAX_PROBED_CHARS:
        return text
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return text
    line = 0
    for statement in body:
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (is_docstring or is_future):
            break
        line = statement.end_lineno or line
    lines = text.split("\n")
    run = f"exec(compile(open({program_path!r}).read(), 'probe', 'exec'), {{}})"
    return "\n".join([*lines[:line], run, *lines[line:]])


def loaded_instead(shadows: Iterable[Shadow], workdir: str, lines: str) -> tuple[Shadow, ...]:
    """Those that a process which ran the tests without the patch would have found before the
    modules that it has. `lines` is what the program wrote; other text is nothing."""
    loaded: list[Shadow] = []
    seen = [reading for line in lines.splitlines() if (reading := _seen(line)) is not None]
    for shadow in shadows:
        place = str(PurePosixPath(workdir, shadow.folder))
        for path, index in seen:
            later = index.get(shadow.module)
            if later is not None and place in path[:later]:
                loaded.append(shadow)
                break
    return tuple(loaded)


def opened_folders(patch: bytes) -> set[str]:
    """Folders that are packages no more: Python may search them from now on."""
    _, changes = split(patch)
    inits = (PurePosixPath(change.path) for change in changes if _GONE.search(change.raw))
    return {str(path.parent) for path in inits if path.name == "__init__.py"}


def hooks_start(patch: bytes) -> tuple[str, ...]:
    """Paths of new files that Python runs by itself when it starts."""
    _, changes = split(patch)
    return tuple(
        change.path for change in changes if is_start_file(change.path) and _NEW.search(change.raw)
    )


def _seen(line: str) -> tuple[list[str], Mapping[str, int]] | None:
    try:
        read = json.loads(line)
        return [str(folder) for folder in read["path"]], {
            k: int(v) for k, v in read["found"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _readings(change: FileChange) -> list[Shadow]:
    return [shadow for shadow in _all_readings(change) if _is_known(shadow.module)]


def _all_readings(change: FileChange) -> list[Shadow]:
    """As a module, or as the file that makes its folder a package."""
    path = PurePosixPath(change.path)
    folder, name = path.parent, path.name
    module = _MODULE.fullmatch(name)
    is_link = _LINK.search(change.raw) is not None
    named = module[1] if module else name if is_link else ""
    shadows = [Shadow(change.path, str(folder), named)]
    if _PACKAGE_FILE.fullmatch(name) and folder.name:
        shadows = [Shadow(change.path, str(folder.parent), folder.name)]
    return [shadow for shadow in shadows if shadow.module]


def _is_known(module: str) -> bool:
    if module in _NOT_ONLY_PYTHONS or module in ("sitecustomize", "usercustomize"):
        return False
    is_listed = module in RUNNERS or module in sys.stdlib_module_names
    return is_listed or _PLUGIN.fullmatch(module) is not None


def _roots(patch: bytes, task: SweTask) -> set[str]:
    hidden = hidden_paths(task)
    named_paths = {*task.files, *hidden, *paths((task.gold_patch or "").encode()), *paths(patch)}
    packages = {
        str(PurePosixPath(path).parent)
        for path in named_paths
        if PurePosixPath(path).name == "__init__.py"
    }
    roots = {str(PurePosixPath(root)) for root in _ROOTS}
    for test in hidden:
        folder = PurePosixPath(test).parent
        while str(folder) in packages and folder.name:
            folder = folder.parent
        roots.add(str(folder))
    return roots - packages | {"."}
