"""Tests that a rollout wrote: which of its patch's files are run, and by which command. Pure.

Invariants: nothing here depends on the task's hidden tests; a command is a launcher and one file,
put together again, so that nothing else of what the policy typed is run; more samples never change
which tests the first ones give. Imported by the activity that runs them and by the export.
"""

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from mainspring.tasks.patches import Apart, apart

_PYTHON = r"(?:[\w./-]*/)?python[\d.]*"
_PYTEST = rf"(?:{_PYTHON}\s+-m\s+pytest|(?:[\w./-]*/)?(?:pytest|py\.test))"
_SET = r"(?P<set>(?:[A-Za-z_]\w*=[\w./:+-]*\s+)*)"
_TIMEOUT = r"(?:timeout\s+[\d.]+[smh]?\s+)?"
_OF_VENV = r"(?:(?:uv|poetry|pdm)\s+run\s+)?"
_RUN = re.compile(
    rf"\s*{_SET}{_TIMEOUT}(?P<run>{_OF_VENV}(?:(?P<lists>{_PYTEST}|{_PYTHON}\s+-m\s+unittest"
    rf"|npx\s+(?:jest|mocha|vitest\s+run)|node\s+--test)|{_PYTHON}|node|bash|sh))\s+(?P<rest>.*)"
)
"""A launcher with the variables set for it, and without its own timeout. Those that take a list of
files find theirs anywhere; of the others the first argument is what they run."""
_RUNS_PYTEST = re.compile(rf"(?:^|[\s;&|(])(?P<run>{_OF_VENV}{_PYTEST})(?=\s|$)", re.MULTILINE)
_BETWEEN = re.compile(r"&&|\|\||[;|&\n]")
_PYTEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")


@dataclass(frozen=True, slots=True)
class WrittenTest:
    digest: str
    """Digest of patch and command: equal tests of several rollouts are one."""
    patch: bytes
    """All changes of its rollout to tests, which the file may need."""
    command: str


@dataclass(frozen=True, slots=True)
class WrittenPatch:
    """A rollout's patch, seen as a program and its tests."""

    program: bytes
    tests: tuple[WrittenTest, ...] = ()
    num_without_command: int = 0
    """Files that look like tests, and nothing tells how they are run."""


def written(patch: bytes, commands: Sequence[str], test_command: str) -> WrittenPatch:
    """`commands` are those that the rollout ran, in order; `test_command` the task's, of which only
    counts whether it runs pytest."""
    parts = apart(patch)
    tests: list[WrittenTest] = []
    num_without = 0
    for path in parts.test_files:
        if command := _command(path, commands, test_command):
            tests.append(_test(parts, command))
        else:
            num_without += _PYTEST_FILE.fullmatch(PurePosixPath(path).name) is not None
    return WrittenPatch(parts.program, tuple(tests), num_without)


def counting(
    of_rollouts: Sequence[WrittenPatch], per_rollout: int, max_tests: int
) -> list[tuple[WrittenTest, ...]]:
    """The tests that are run of each rollout of a task, in the order of its samples."""
    known: set[str] = set()
    chosen: list[tuple[WrittenTest, ...]] = []
    for each in of_rollouts:
        mine: list[WrittenTest] = []
        for test in each.tests[:per_rollout]:
            if test.digest in known or len(known) < max_tests:
                known.add(test.digest)
                mine.append(test)
        chosen.append(tuple(mine))
    return chosen


def _test(parts: Apart, command: str) -> WrittenTest:
    digest = hashlib.sha256(parts.tests + b"\0" + command.encode(errors="surrogateescape"))
    return WrittenTest(digest.hexdigest(), parts.tests, command)


def _command(path: str, commands: Sequence[str], test_command: str) -> str | None:
    """The launcher that the rollout last ran the file with; else, for a file that pytest would
    collect, pytest as the rollout or the task ran it."""
    for command in reversed(commands):
        for part in reversed(_BETWEEN.split(command)):
            ran = _RUN.match(part)
            if ran and _runs(path, ran["rest"], is_list=ran["lists"] is not None):
                return f"{ran['set']}{ran['run']} {shlex.quote(path)}"
    if _PYTEST_FILE.fullmatch(PurePosixPath(path).name):
        for command in (*reversed(commands), test_command):
            if ran := _RUNS_PYTEST.search(command):
                return f"{ran['run']} {shlex.quote(path)}"
    return None


def _runs(path: str, rest: str, *, is_list: bool) -> bool:
    try:
        words = shlex.split(rest)
    except ValueError:  # a quote without its end
        return False
    if is_list:
        return any(_names(word, path) for word in words)
    if "-m" in words or "-c" in words:
        return False
    first = next((word for word in words if not word.startswith("-")), "")
    return _names(first, path)


def _names(word: str, path: str) -> bool:
    """Whether a word of a command is the file: from the repository, from above it, or from a folder
    inside."""
    word = word.partition("::")[0].removeprefix("./")
    return bool(word) and (word == path or word.endswith(f"/{path}") or path.endswith(f"/{word}"))
