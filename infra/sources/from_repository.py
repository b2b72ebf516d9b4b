"""A task's row from a git repository: its files before the fix, the fix, and the tests it brings.

As SWE-bench does it, the fix between two commits is split: changes to tests become the hidden
tests, the rest is the gold patch. Nothing in the repository is changed. Imported by the command
line; what comes out is a row that `mainspring tasks import` takes.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from infra.sources.protocol import ImportOptions, Place, RowError
from infra.sources.rows import read_row
from mainspring.errors import UsageError
from mainspring.tasks.patches import FileChange, is_test, paths, split

MAX_FILES_BYTES = 16 << 20
"""Size of a repository that is kept as text in its row; larger ones need an image."""
MAX_SHOWN = 5
"""Names in a message."""
_FILE_MODES = ("100644", "100755")
_PLAIN_DIFF = (
    *("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--no-relative", "--submodule=short"),
)
"""Whatever the person has set for their own eyes."""
_PLAIN_GIT = (
    *("-c", "diff.suppressBlankEmpty=false", "-c", "diff.interHunkContext=0"),
    *("-c", "diff.orderFile=/dev/null", "-c", "log.showSignature=false"),
)
_LFS = b"version https://git-lfs.github.com/spec/"
_NEEDS_IMAGE = "build an image with the repository in it, and give it with --image"


@dataclass(frozen=True, slots=True)
class RepositoryTask:
    """Facts that the person gives of the task."""

    tests: tuple[str, ...]
    """Files and folders of the hidden tests, relative to the repository."""
    test_command: str
    gold: str | None = None
    """The fix as a patch against `base`; the tests are in the working tree then."""
    base: str = ""
    """Commit before the fix; empty: the fix's parent, or HEAD with `gold`."""
    fix: str = ""
    """Commit with the fix and its tests."""
    id: str = ""
    issue: str = ""
    """Empty: the message of the fix's commit."""
    split: str = "train"
    image: str | None = None
    """With it the row holds no files: the image has the repository at `workdir`."""
    workdir: str = "/testbed"
    test_timeout_s: float = 60.0
    leave_out: tuple[str, ...] = ()
    """Files of the repository that the row does without, as patterns of the shell."""


@dataclass(frozen=True, slots=True)
class NewRow:
    row: dict[str, object]
    left_out: tuple[str, ...]
    """Files that the row does without, and why each; those that the person named come last."""


def make_row(repository: Path, request: RepositoryTask) -> NewRow:
    """Raises UsageError."""
    top = Path(_git(repository, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    if bool(request.gold) == bool(request.fix):
        raise UsageError(
            "a task needs its fix", remedy="give either --gold FIX.patch or --fix REF (and --base)"
        )
    if request.fix:
        _commit(top, request.fix)
    base = _commit(top, request.base or (f"{request.fix}^" if request.fix else "HEAD"))
    if request.fix:
        fix = _commit(top, request.fix)
        tests, gold = _of_fix(top, base, fix, request.tests)
        executables = _executables(top, fix) & tests.keys()
        hidden: tuple[str, ...] = ()
        issue = request.issue or _git(top, "log", "-1", "--format=%B", fix).decode(errors="replace")
    else:
        fix = base
        tests, gold = _of_working_tree(top, request.tests), request.gold or ""
        executables = {path for path in tests if os.access(top / path, os.X_OK)}
        hidden, issue = request.tests, request.issue
    row: dict[str, object] = {
        "id": request.id or f"{top.name}-{fix[:10]}",
        "split": request.split,
        "issue": issue.strip(),
        "workdir": request.workdir,
        "tests": tests,
        "test_command": request.test_command,
        "test_timeout_s": request.test_timeout_s,
        "gold_patch": gold,
        "metadata": {"base_commit": base, "repo": top.name},
    }
    left_out: tuple[str, ...] = ()
    if request.image:
        row["image"] = request.image
    else:
        needed = _touched(gold) | set(tests)
        files, left_out = _files(top, base, hidden, needed, request.leave_out)
        row["files"] = files
        executables |= _executables(top, base) & files.keys()
    if executables:
        row["executables"] = sorted(executables)
    return NewRow(_checked(row), left_out)


def _touched(gold: str) -> set[str]:
    """Files the fix cannot do without. A fix that is no patch is refused later, by its own name."""
    return {path for path in paths(gold.encode(errors="surrogatepass")) if path}


def _checked(row: dict[str, object]) -> dict[str, object]:
    """As an import reads it."""
    if not row["issue"]:
        raise UsageError("the task has no issue", remedy="give a file with its text: --issue FILE")
    new_row = read_row(row, Place("the new row"), ImportOptions(), source="new")
    if new_row is not None and isinstance(new_row.result, RowError):
        raise UsageError(
            f"these make no task: {new_row.result.message}", remedy=new_row.result.remedy
        )
    return row


def _of_fix(top: Path, base: str, fix: str, tests: Sequence[str]) -> tuple[dict[str, str], str]:
    """The tests as the fix leaves them, and the rest of the fix."""
    _, changes = split(_git(top, "diff", *_PLAIN_DIFF, base, fix))
    for test in tests:
        if not any(_is_below(change.path, [test]) for change in changes):
            changed = [_shown(change.path) for change in changes if is_test(change.path)]
            raise UsageError(
                f"{fix[:10]} changes nothing at {test}",
                remedy=f"of tests it changes {', '.join(changed[:MAX_SHOWN]) or 'none'}: give "
                "--tests relative to the repository, or the fix with --gold",
            )
    brought = [
        change for change in changes if _is_below(change.path, tests) or is_test(change.path)
    ]
    gold = [change for change in changes if change not in brought]
    if not brought:
        raise UsageError(
            f"{fix[:10]} changes no tests below {', '.join(tests)}",
            remedy="name the tests that the fix brings, or give the fix with --gold",
        )
    if not gold:
        raise UsageError(
            f"{fix[:10]} changes nothing but tests", remedy="name the commit that has the fix"
        )
    files = {
        change.path: _text(change.path, _git(top, "cat-file", "blob", f"{fix}:{change.path}"))
        for change in brought
        if not _is_deleted(change)
    }
    return files, _text("the fix", b"".join(change.raw for change in gold))


def _of_working_tree(top: Path, tests: Sequence[str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for test in tests:
        path = top / test
        test_files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in test_files:
            if "__pycache__" not in file.parts:
                files[file.relative_to(top).as_posix()] = _text(str(file), file.read_bytes())
    if not files:
        raise UsageError(
            f"there are no files at {', '.join(tests)} in {top}",
            remedy="give --tests relative to the repository",
        )
    return files


def _files(
    top: Path, base: str, hidden: Sequence[str], needed: set[str], leave_out: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Text by path, and what is left out: what no text holds, unless the fix or the tests need it
    (`needed`), and what the person names."""
    files: dict[str, str] = {}
    left_out: list[str] = []
    named_out: list[str] = []
    unused = set(leave_out)
    num_bytes = 0
    for entry in _git(top, "ls-tree", "-r", "-z", "--full-tree", base).split(b"\0"):
        if not entry:
            continue
        about, _, raw_path = entry.partition(b"\t")
        mode, _, blob = about.decode().split()
        path = raw_path.decode(errors="surrogateescape")
        if _is_below(path, hidden):
            continue
        if patterns := {pattern for pattern in leave_out if fnmatchcase(path, pattern)}:
            unused -= patterns
            why, content = "named by --leave-out", b""
        else:
            content = _git(top, "cat-file", "blob", blob) if mode in _FILE_MODES else b""
            why = _no_text(path, mode, content)
        if why and path in needed:
            raise UsageError(
                f"{_shown(path)} is {why}, and the fix or the tests need it", remedy=_NEEDS_IMAGE
            )
        if why:
            (named_out if patterns else left_out).append(f"{_shown(path)} ({why})")
            continue
        num_bytes += len(content)
        if num_bytes > MAX_FILES_BYTES:
            raise UsageError(
                f"{top} holds more than {MAX_FILES_BYTES >> 20} MB of files",
                remedy=f"leave files out with --leave-out PATTERN, or {_NEEDS_IMAGE}",
            )
        files[path] = content.decode()
    if unused:
        raise UsageError(
            f"--leave-out {min(unused)} matches no file of {base[:10]}",
            remedy="give paths from the top of the repository; `*` matches folders, too",
        )
    return files, (*left_out, *named_out)


def _no_text(path: str, mode: str, content: bytes) -> str:
    """Why a row cannot hold the file; empty when it can."""
    if mode not in _FILE_MODES:
        return "a link" if mode == "120000" else "a submodule"
    if content.startswith(_LFS):
        return "a pointer of git LFS, whose file is elsewhere"
    try:
        path.encode()
        content.decode()
    except UnicodeDecodeError:
        return "no UTF-8 text"
    except UnicodeEncodeError:
        return "a file whose name is not UTF-8"
    return "no text: it holds NUL" if b"\0" in content else ""


def _shown(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _executables(top: Path, commit: str) -> set[str]:
    entries = _git(top, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")
    marked = (entry.partition(b"\t")[2] for entry in entries if entry.startswith(b"100755 "))
    return {path.decode(errors="surrogateescape") for path in marked}


def _text(name: str, raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} is not UTF-8 text", remedy=_NEEDS_IMAGE)
    return text


def _is_below(path: str, tops: Sequence[str]) -> bool:
    return any(path == top or path.startswith(f"{top.rstrip('/')}/") for top in tops)


def _is_deleted(change: FileChange) -> bool:
    return b"\ndeleted file mode " in change.raw


def _commit(top: Path, ref: str) -> str:
    commit = f"{ref}^{{commit}}"
    try:
        return _git(top, "rev-parse", "--verify", "--end-of-options", commit).decode().strip()
    except UsageError as error:
        of = ref.removesuffix("^")
        problem = f"{of} has no commit before it" if of != ref else f"there is no commit {ref}"
        raise UsageError(
            f"{problem} in {top} ({error.message.partition('fatal: ')[2] or error.message})",
            remedy="see `git log`; the first commit has no parent: give --base, or the fix with "
            "--gold",
        ) from None


def _git(repository: Path, *arguments: str) -> bytes:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**own, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(repository), *_PLAIN_GIT, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed", remedy="install git") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
        # What comes after it is advice, as of a path at the edge of a file system.
        fatal = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        raise UsageError(
            f"git {arguments[0]} in {repository}: {fatal}",
            remedy="check the path of the repository and the names of its commits",
        )
    return done.stdout
