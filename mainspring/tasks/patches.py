"""Git patches as the files they change, and which of those changes count for a task. Pure.

Invariants: the parts of a patch put together again are the patch, byte for byte, whatever it is;
what does not count is dropped by whole files and named; everything else stays as it is. Imported by
grading and by code that needs to know what a patch touches.
"""

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from mainspring.tasks.swe_task import SweTask

CI_FOLDERS = (".github/workflows", ".circleci", ".buildkite")
CI_FILES = frozenset(
    {
        *(".gitlab-ci.yml", ".travis.yml", "appveyor.yml", ".appveyor.yml", "Jenkinsfile"),
        *("azure-pipelines.yml", "bitbucket-pipelines.yml", ".drone.yml", ".cirrus.yml"),
    }
)
"""At the repository's root. Not tox.ini, setup.cfg or pyproject.toml: they configure the program
too, and a change that has pytest report wrongly can stand in any of its own files."""
TEST_FOLDERS = frozenset({"tests", "__tests__"})
"""At any depth; "test" only at the root: below it is often a program's own (django/test)."""
TEST_FILE = re.compile(
    r"test_.*\.py|.*_test\.py|conftest\.py|.*\.(?:test|spec)\.[cm]?[jt]sx?|.*_test\.go"
    r"|\.?pytest\.(?:ini|toml)"
)
START_FILE = re.compile(
    r"(?:^|/)(?:site|user)customize(?:\.(?:[\w-]+\.)*(?:py|pyc|so)|/__init__\.\w+)$"
    r"|-packages/[^/]+\.(?:pth|egg-link)$"
)
"""Python runs them by itself, before any test, wherever they are found."""

ATTRIBUTES = b".gitattributes"
GIT = b"diff --git "
HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_GITLINK = re.compile(
    rb"\A" + GIT + rb"[^\n]*\n(?:[a-z][^\n]*\n)*?(?:[a-z ]*mode|index [0-9a-f.]+) 160000\n"
)
"""The commit of a repository inside the repository: git applies it, and writes no file."""
_DELETION = re.compile(rb"^(?:deleted file mode |\+\+\+ /dev/null$)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))


@dataclass(frozen=True, slots=True)
class FileChange:
    path: str
    """Relative to the repository: after the change, or of what was deleted."""
    old_path: str
    """Another one where the file was renamed or copied."""
    raw: bytes


def split(patch: bytes) -> tuple[bytes, list[FileChange]]:
    """The text before the first file, and each file's part. Text that is no patch is all before."""
    lines = io.BytesIO(patch).readlines()
    starts = _starts(lines)
    parts = [lines[start:end] for start, end in pairwise([*starts, len(lines)])]
    preamble = lines[: starts[0]] if starts else lines
    return b"".join(preamble), [FileChange(*_paths(part), b"".join(part)) for part in parts]


def paths(patch: bytes) -> set[str]:
    """Every path that the patch names, before or after."""
    _, changes = split(patch)
    return {path for change in changes for path in (change.path, change.old_path)}


def hidden_paths(task: SweTask) -> set[str]:
    """Paths of the task's own tests: hidden in the image, laid over the repository, patched in, or
    patched in by a test command that brings the patch with it."""
    laid_over = {path for path in (*task.tests, *task.hidden_files) if not path.startswith("/")}
    return laid_over | paths(task.test_patch.encode()) | _in_script(task)


def without_tests(
    patch: bytes, task: SweTask, admitted: frozenset[str] = frozenset()
) -> tuple[bytes, tuple[str, ...]]:
    """The patch without changes to the hidden tests, to other tests, to CI configuration, to files
    that Python runs when it starts and to commits of repositories inside, and the paths that were
    dropped. All but the first and the last stay where the true fix has them, or where `admitted`
    names them."""
    preamble, changes = split(patch)
    hidden = hidden_paths(task)
    stay = paths((task.gold_patch or "").encode()) | admitted
    kept: list[FileChange] = []
    dropped: list[str] = []
    for change in changes:
        if (
            _at_or_below(change.path, hidden)
            or _at_or_below(change.old_path, hidden)
            or (change.path not in stay and _does_not_count(change.path))
            or _GITLINK.search(change.raw)
        ):
            dropped.append(change.path)
        else:
            kept.append(change)
    if not dropped:
        return patch, ()
    counts = preamble + b"".join(change.raw for change in kept) if kept else b""
    return counts, tuple(dict.fromkeys(dropped))


@dataclass(frozen=True, slots=True)
class Apart:
    """A patch apart by what is known without the task's hidden tests."""

    program: bytes
    """Changes to what is no test."""
    tests: bytes
    """Changes to files that are named like tests, or stand among tests."""
    test_files: tuple[str, ...]
    """Paths of those that are there after the change, in the patch's order."""


def apart(patch: bytes) -> Apart:
    """The program's part of a patch and that of its tests. In neither: CI configuration, files that
    Python runs when it starts, and commits of repositories inside."""
    _, changes = split(patch)
    program: list[FileChange] = []
    tests: list[FileChange] = []
    for change in changes:
        if is_ci(change.path) or is_start_file(change.path) or _GITLINK.search(change.raw):
            continue
        (tests if is_test(change.path) else program).append(change)
    return Apart(
        b"".join(_ended(change.raw) for change in program),
        b"".join(_ended(change.raw) for change in tests),
        tuple(change.path for change in tests if not _DELETION.search(change.raw)),
    )


def attributes_last(patch: bytes) -> bytes:
    """The patch with its .gitattributes at the end: git would write what follows them as they ask,
    which is not what the patch has."""
    if ATTRIBUTES not in patch:
        return patch
    preamble, changes = split(patch)
    asks = [PurePosixPath(change.path).name == ATTRIBUTES.decode() for change in changes]
    ordered = sorted(range(len(changes)), key=lambda index: asks[index])
    return preamble + b"".join(_ended(changes[index].raw) for index in ordered)


def _ended(part: bytes) -> bytes:
    """The part, with an end to its last line."""
    return part if part.endswith(b"\n") else part + b"\n"


def is_test(path: str) -> bool:
    *folders, name = PurePosixPath(path).parts or ("",)
    return bool(
        not TEST_FOLDERS.isdisjoint(folders) or folders[:1] == ["test"] or TEST_FILE.fullmatch(name)
    )


def is_start_file(path: str) -> bool:
    return START_FILE.search(path) is not None


def is_ci(path: str) -> bool:
    return path in CI_FILES or _at_or_below(path, CI_FOLDERS)


def _does_not_count(path: str) -> bool:
    return is_test(path) or is_ci(path) or is_start_file(path)


def _at_or_below(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _in_script(task: SweTask) -> set[str]:
    headers = re.findall(r"^diff --git .*$", task.test_command, re.MULTILINE)
    named = (header_paths(header.encode()) for header in headers)
    return {path for pair in named for path in pair}


def _starts(lines: list[bytes]) -> list[int]:
    """Indices of the lines where a file's part begins, as `git apply` reads them: a git header, or
    two lines of names and a hunk. Neither counts inside a hunk, whose length is known."""
    starts: list[int] = []
    old = new = 0
    in_header = False  # the next lines of names belong to the git header
    for index, line in enumerate(lines):
        if old > 0 or new > 0:
            kind = line[:1]
            if kind in (b" ", b"\n", b"\r", b"-", b"+", b"\\"):
                old -= kind not in (b"+", b"\\")
                new -= kind not in (b"-", b"\\")
                continue
            old = new = 0  # shorter than its header claims
        if line.startswith(GIT):
            starts.append(index)
            in_header = True
        elif line.startswith(b"--- ") and [
            following[:4] for following in lines[index + 1 : index + 3]
        ] == [
            b"+++ ",
            b"@@ -",
        ]:
            if not in_header:
                starts.append(index)
            in_header = False
        elif starts and (hunk := HUNK.match(line)):
            old, new = (int(1 if size is None else size) for size in hunk.groups())
            in_header = False
        elif line.startswith(b"GIT binary patch"):
            in_header = False
    return starts


def _paths(part: list[bytes]) -> tuple[str, str]:
    """After and before the change."""
    old = new = None
    if part[0].startswith(GIT):
        new, old = header_paths(part[0])
    for line in part:
        if line.startswith((b"@@ ", b"GIT binary patch")):
            break
        for prefix in (b"--- ", b"rename from ", b"copy from "):
            if line.startswith(prefix):
                old = name_in(line[len(prefix) :], prefix == b"--- ", old)
        for prefix in (b"+++ ", b"rename to ", b"copy to "):
            if line.startswith(prefix):
                new = name_in(line[len(prefix) :], prefix == b"+++ ", new)
    return new or old or "", old or new or ""


def header_paths(line: bytes) -> tuple[str, str]:
    """Paths in `diff --git a/x b/x`, after and before; equal where no other line tells them."""
    names = line.removeprefix(GIT).rstrip(b"\r\n")
    quoted = re.fullmatch(rb'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', names)
    half = len(names) // 2
    if quoted:
        old, new = quoted.groups()
    elif names[half : half + 1] == b" " and names[:half][1:] == names[half + 1 :][1:]:
        old, new = names[:half], names[half + 1 :]
    else:
        old, _, new = names.partition(b" b/")
        new = b"b/" + new
    return name_in(new, True, None) or "", name_in(old, True, None) or ""


def name_in(raw: bytes, prefixed: bool, otherwise: str | None) -> str | None:
    """The path that a line names; `otherwise` for the file that does not exist on one side."""
    raw = raw.rstrip(b"\r\n")
    if raw.startswith(b'"'):
        raw = _ESCAPE.sub(_unescaped, raw[1:].rpartition(b'"')[0])
    elif prefixed:
        raw = raw.partition(b"\t")[0]
    if raw == b"/dev/null":
        return otherwise
    if prefixed:
        raw = raw.partition(b"/")[2] or raw
    return raw.decode(errors="surrogateescape")


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if len(code) == 3:
        return bytes([int(code, 8) & 0xFF])
    return bytes([_ESCAPED.get(code[0], code[0])])
