"""Whether a task can be run and resolved at all, as far as its row alone tells. Pure.

Invariant: what is refused here would fail in every sandbox, or could be resolved by no patch; what
only looks strange is left to `tasks verify`. Tasks stored before a check was added stay as they
are. Imported by `fields`.
"""

import math
import posixpath
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from infra.sandbox.containers.image_names import ImageName
from infra.sandbox.protocol import ImageUnknown
from infra.sources.patch_files import read_patch
from infra.sources.protocol import RowError, RowProblem
from mainspring.tasks import reward_file
from mainspring.tasks.criterion import RewardFile, TestLog
from mainspring.tasks.patches import without_tests
from mainspring.tasks.swe_task import SweTask

MAX_TEST_TIMEOUT_S = 7 * 24 * 3600.0
"""Nothing else on a node waits longer for one command."""
MAX_COMMAND_BYTES = 130_000
"""Linux takes 131,071 for one argument of a program; the tests' run is the argument of a bash."""
MAX_NAME_BYTES = 255
"""Bytes of the name of one folder or file, on every file system that nodes use."""
MAX_PATH_BYTES = 4000
TESTS_DIR = "/tests"
SOLVE = "solve.sh"
_SYSTEM = ("/proc", "/sys", "/dev")
_NODES_OWN = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"),
    *("/opt/python", "/run/mainspring"),
)
"""Folders that a sandbox without an image has itself, with all that is below."""
_MOUNTS = ("/tmp", "/home/agent", "/run")
"""The same, where folders below are free."""


def check_sound(task: SweTask) -> None:
    """Raises RowError, which names the field."""
    if not task.issue.strip():
        raise _impossible("issue is blank")
    if not task.test_command.strip():
        raise _impossible("test_command is blank: it would pass whatever is done")
    if (size := len(task.test_command.encode(errors="surrogatepass"))) > MAX_COMMAND_BYTES:
        raise _impossible(
            f"test_command has {size:,} bytes, and bash is given {MAX_COMMAND_BYTES:,} at most",
            remedy="keep the patch or the data that it holds in `tests` or `test_patch`",
        )
    if not math.isfinite(task.test_timeout_s) or task.test_timeout_s > MAX_TEST_TIMEOUT_S:
        raise _impossible(f"test_timeout_s must be at most {MAX_TEST_TIMEOUT_S:g} (a week)")
    _check_image(task)
    _check_workdir(task)
    _check_paths("files", task.files)
    _check_paths("solution", task.solution)
    for path in task.executables:
        if path not in task.files and path not in task.tests:
            raise _impossible(f"executables: {path[:80]!r} is neither in files nor in tests")
    _check_tests(task)
    _check_judge(task)
    _check_patches(task)


def _check_image(task: SweTask) -> None:
    if task.image is None:
        return
    try:
        ImageName.parse(task.image)
    except ImageUnknown as error:
        raise RowError(
            RowProblem.NO_IMAGE, f"image: {error.message}", remedy=error.remedy
        ) from None


def _check_workdir(task: SweTask) -> None:
    workdir = task.workdir
    if not workdir.startswith("/") or ".." in PurePosixPath(workdir).parts:
        raise _impossible(f"workdir {workdir[:80]!r} is not an absolute path")
    if not workdir.isprintable() or _too_long(workdir):
        raise _impossible(f"workdir {workdir[:80]!r} cannot be the path of a folder")
    place = posixpath.normpath(f"/{workdir.lstrip('/')}")
    reserved = [*_SYSTEM, *_grading_folders(task), *(_NODES_OWN if task.image is None else ())]
    exactly = ["/", *(_MOUNTS if task.image is None else ())]
    if place in exactly or any(f"{place}/".startswith(f"{top}/") for top in reserved):
        raise _impossible(
            f"workdir {workdir!r} is taken: a sandbox has it for other things",
            remedy="choose a folder of its own, as in /testbed",
        )


def _grading_folders(task: SweTask) -> list[str]:
    """Folders that grading lays into the sandbox beside the repository."""
    outside = any(path.startswith("/") for path in task.tests)
    verifier = isinstance(task.judge, RewardFile) or outside
    solution = ["/solution"] if task.solution else []
    return [*solution, *([TESTS_DIR, reward_file.FOLDER] if verifier else [])]


def _check_tests(task: SweTask) -> None:
    outside = [path for path in task.tests if path.startswith("/")]
    for path in outside:
        tops = (TESTS_DIR, reward_file.FOLDER)
        below = next((path[len(top) + 1 :] for top in tops if path.startswith(f"{top}/")), None)
        if below is None:
            raise _impossible(
                f"tests: {path[:80]!r} is neither in the repository nor below {TESTS_DIR}",
                remedy="paths of hidden tests are relative to the repository",
            )
        _check_paths("tests", [below])
    _check_paths("tests", [path for path in task.tests if not path.startswith("/")])
    if task.solution and SOLVE not in task.solution:
        raise _impossible(f"solution has no {SOLVE}, which is what makes the true fix")


def _check_judge(task: SweTask) -> None:
    match task.judge:
        case TestLog(fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass):
            if not fail_to_pass:
                raise _impossible("judge.fail_to_pass is empty: nothing to solve")
            if not all(name.strip() for name in (*fail_to_pass, *pass_to_pass)):
                raise _impossible("judge names a test by a blank name, which no log can have")
        case RewardFile(threshold=threshold) if not math.isfinite(threshold):
            raise _impossible("judge.threshold is not a finite number: no reward can reach it")
        case _:
            pass


def _check_patches(task: SweTask) -> None:
    if task.gold_patch is not None and not task.gold_patch.strip():
        raise _impossible("gold_patch is empty", remedy="give the true fix, or leave the field out")
    for field in ("base_patch", "test_patch", "gold_patch"):
        if not (patch := getattr(task, field)):
            continue
        try:
            patch_files = read_patch(patch)
        except ValueError as error:
            raise RowError(RowProblem.NOT_A_PATCH, f"{field} is not a git patch: {error}") from None
        _check_paths(
            field, dict.fromkeys((*patch_files.before, *patch_files.after)), in_one_tree=False
        )
        if task.image is None:
            _check_present(field, patch_files.before, {*task.files, *patch_files.created})
            # The other patch may take the file away before.
            _check_new(field, patch_files.created, {*task.files} - _taken_away(task))
    if task.gold_patch and not without_tests(task.gold_patch.encode(), task)[0]:
        raise _impossible(
            "gold_patch changes nothing but hidden tests or commits of submodules, which do not "
            "count",
            remedy="leave the tests to test_patch, and the fix to gold_patch",
        )


def _check_present(field: str, before: Iterable[str], files: Collection[str]) -> None:
    paths = {posixpath.normpath(path) for path in files}
    absent = next((path for path in before if path not in paths), None)
    if absent is not None:
        raise _impossible(f"{field} changes {absent[:80]!r}, which is not among the task's files")


def _check_new(field: str, created: Iterable[str], files: Collection[str]) -> None:
    paths = {posixpath.normpath(path) for path in files}
    if present := next((path for path in created if path in paths), None):
        raise _impossible(f"{field} creates {present[:80]!r}, which is among the task's files")


def _taken_away(task: SweTask) -> set[str]:
    """Files that a patch deletes or renames: another one may bring them anew."""
    patches = [read_patch(patch) for patch in (task.test_patch, task.gold_patch) if patch]
    return {path for files in patches for path in set(files.before) - set(files.after)}


def _check_paths(field: str, paths: Iterable[str], *, in_one_tree: bool = True) -> None:
    """Each may be written below a folder, and all of them together."""
    seen: set[str] = set()
    for path in paths:
        parts = PurePosixPath(path).parts
        wrong = (
            *(["is empty"] if not parts else []),
            *(["is not relative to its folder"] if path.startswith("/") or ".." in parts else []),
            *(["is inside a git directory"] if ".git" in map(str.lower, parts) else []),
            *(["is too long"] if _too_long(path) else []),
            *(["is taken twice"] if in_one_tree and posixpath.normpath(path) in seen else []),
        )
        if wrong:
            raise _impossible(f"{field}: {path[:80]!r} {wrong[0]}")
        seen.add(posixpath.normpath(path))
    if in_one_tree:
        folders = {str(parent) for path in seen for parent in PurePosixPath(path).parents}
        if both := sorted(seen & folders):
            raise _impossible(f"{field}: {both[0][:80]!r} is a file and a folder at once")


def _too_long(path: str) -> bool:
    raw = path.encode(errors="surrogatepass")
    return len(raw) > MAX_PATH_BYTES or any(len(p) > MAX_NAME_BYTES for p in raw.split(b"/"))


def _impossible(message: str, *, remedy: str = "") -> RowError:
    return RowError(RowProblem.IMPOSSIBLE, message, remedy=remedy)
