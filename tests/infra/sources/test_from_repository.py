"""`mainspring tasks new` on real git repositories: the row imports, and grades as it should."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.tasks import tasks
from infra.environments.grader import for_grading, judge
from infra.environments.swe import sandbox_spec
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.sandbox import SandboxConfig
from mainspring.errors import UsageError
from mainspring.ids import SandboxId
from mainspring.status import Verdict
from mainspring.tasks.swe_task import SweTask

BUGGY = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\n\nassert add(2, 3) == 5\n"
COMMAND = ("--test-command", "PYTHONPATH=. python3 tests/test_calc.py")


def git(repository: Path, *arguments: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@b")
    command = ["git", "-C", str(repository), *author, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Its second commit fixes a bug, with a test."""
    top = tmp_path / "calc"
    (top / "tests").mkdir(parents=True)
    git(tmp_path, "init", "-q", str(top))
    (top / "calc.py").write_text(BUGGY)
    (top / "tests" / "test_old.py").write_text("import calc\n")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "Begin")
    (top / "calc.py").write_text(BUGGY.replace("a - b", "a + b"))
    (top / "tests" / "test_calc.py").write_text(TEST)
    git(top, "add", "-A")
    git(top, "commit", "-qm", "add subtracts\n\nIt should add.")
    return top


def new(repository: Path, *arguments: str) -> Result:
    app = typer.Typer()
    app.add_typer(tasks.app)
    return CliRunner().invoke(app, ["tasks", "new", str(repository), *arguments])


def imported(file: Path) -> SweTask:
    [row] = open_source(str(file), ImportOptions()).rows()
    assert isinstance(row.result, SweTask), row.result
    return row.result


async def verdicts(task: SweTask, state: Path) -> list[Verdict]:
    """Of the gold patch and of none."""
    backend = BwrapBackend(state)
    try:
        await backend.probe()
    except BackendUnavailable as unavailable:
        pytest.skip(str(unavailable))
    found = []
    for patch in (str(task.gold_patch).encode(), b""):
        spec = sandbox_spec(SandboxId(f"new{len(found)}"), task, SandboxConfig(), {})
        sandbox = await backend.open(for_grading(spec, task))
        found.append((await judge(sandbox, task, patch, run_empty=True)).verdict)
        await sandbox.close()
    return found


async def test_a_fix_between_two_commits_is_split(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows" / "own.jsonl"
    said = await asyncio.to_thread(
        new, repository, "--tests", "tests", *COMMAND, "--fix", "HEAD", "--out", str(out)
    )
    assert said.exit_code == 0, said.exception
    assert f"mainspring tasks import {out} --name own" in said.stdout
    task = imported(out)
    assert task.files == {"calc.py": BUGGY, "tests/test_old.py": "import calc\n"}
    assert task.tests == {"tests/test_calc.py": TEST}
    assert task.issue == "add subtracts\n\nIt should add." and task.id.startswith("calc-")
    assert "test_calc" not in str(task.gold_patch)
    assert await verdicts(task, tmp_path) == [Verdict.RESOLVED, Verdict.NOT_RESOLVED]
    again = new(repository, "--tests", "tests", *COMMAND, "--fix", "HEAD", "--out", str(out))
    assert isinstance(again.exception, UsageError) and "--id" in again.exception.remedy
    assert new(
        repository, "--tests", "tests", *COMMAND, "--fix", "HEAD", "--id", "b", "--out", str(out)
    ).exit_code == 0  # fmt: skip
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()][1] == "b"


async def test_a_failing_test_of_the_working_tree_and_a_patch(
    repository: Path, tmp_path: Path
) -> None:
    fix, issue, out = tmp_path / "fix.patch", tmp_path / "issue.md", tmp_path / "own.jsonl"
    fix.write_text(git(repository, "diff", "HEAD^", "HEAD", "--", "calc.py") + "\n")
    issue.write_text("add subtracts")
    git(repository, "checkout", "-q", "HEAD^")
    (repository / "tests" / "test_calc.py").write_text(TEST)
    said = await asyncio.to_thread(
        new, repository, "--tests", "tests/test_calc.py", *COMMAND,
        "--gold", str(fix), "--issue", str(issue), "--out", str(out),
    )  # fmt: skip
    assert said.exit_code == 0, said.exception
    task = imported(out)
    assert task.tests == {"tests/test_calc.py": TEST} and set(task.files) == {
        "calc.py",
        "tests/test_old.py",
    }
    assert await verdicts(task, tmp_path) == [Verdict.RESOLVED, Verdict.NOT_RESOLVED]


def first(repository: Path) -> str:
    return git(repository, "rev-list", "--max-parents=0", "HEAD").strip()


def test_what_makes_no_task_says_why(repository: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "own.jsonl"))
    tests = ("--tests", "tests", *COMMAND)
    for arguments, reason in [
        ((*tests, *out), "needs its fix"),
        ((*tests, "--fix", "nope", *out), "there is no commit nope in"),
        ((*tests, "--fix", "", "--base", "nope", *out), "needs its fix"),
        ((*tests, "--fix", "HEAD", "--base", "nope", *out), "there is no commit nope in"),
        ((*tests, "--fix", first(repository), *out), "has no commit before it"),
        ((*tests, "--fix", "HEAD", "--base", "HEAD", *out), "changes nothing at tests"),
        ((*tests, "--tests", "nothing", "--fix", "HEAD", *out), "changes nothing at nothing"),
        (("--tests", "test", *COMMAND, "--fix", "HEAD", *out), "changes tests/test_calc.py"),
        ((*tests, "--fix", "HEAD", "--workdir", "/usr/x", *out), "is taken"),
        ((*tests, "--fix", "HEAD", "--out", "x.txt"), "not a file of rows"),
    ]:
        failed = new(repository, *arguments).exception
        assert isinstance(failed, UsageError) and reason in str(failed), (arguments, failed)
    assert not (tmp_path / "own.jsonl").exists()
    missing = new(tmp_path, *tests, "--fix", "HEAD", *out).exception
    assert isinstance(missing, UsageError) and "not a git repository" in str(missing)


def test_what_no_text_holds_is_left_out_and_named(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "-b", "more", "HEAD^")
    (repository / "misc").mkdir()
    (repository / "misc" / "output.jpg").write_bytes(b"\xff\xd8\xff\xe0\x00")
    (repository / "font.woff").write_bytes(b"wOFF\x00\x01")
    (repository / "utf16.txt").write_bytes("text".encode("utf-16"))
    (repository / "link.py").symlink_to("calc.py")
    (repository / "big.bin").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\n"
    )
    (repository / "docs").mkdir()
    (repository / "docs" / "page.md").write_text("x" * 100)
    Path(f"{repository}/caf\udce9.txt").write_text("latin")
    git(repository, "add", "-A")
    submodule = "160000,1111111111111111111111111111111111111111,vendor/lib"
    git(repository, "update-index", "--add", "--cacheinfo", submodule)
    git(repository, "commit", "-qm", "More")
    (repository / "calc.py").write_text(BUGGY.replace("a - b", "a + b"))
    (repository / "tests" / "test_calc.py").write_text(TEST)
    git(repository, "add", "calc.py", "tests")
    git(repository, "commit", "-qm", "Fix")
    out = tmp_path / "own.jsonl"
    arguments = ("--tests", "tests", *COMMAND, "--fix", "HEAD", "--out", str(out))
    said = new(repository, *arguments, "--leave-out", "docs/*")
    assert said.exit_code == 0, said.exception
    assert "left out 8 of the repository's files:" in said.stdout
    for named in (
        "misc/output.jpg (no UTF-8 text)",
        "font.woff (no text: it holds NUL)",
        "utf16.txt (no UTF-8 text)",
        "link.py (a link)",
        "big.bin (a pointer of git LFS, whose file is elsewhere)",
        "docs/page.md (named by --leave-out)",
        "caf\\xe9.txt (a file whose name is not UTF-8)",
        "vendor/lib (a submodule)",
    ):
        assert f"  {named}\n" in said.stdout, named
    assert set(imported(out).files) == {"calc.py", "tests/test_old.py"}
    unused = new(repository, *arguments, "--id", "b", "--leave-out", "doc/*").exception
    assert isinstance(unused, UsageError) and "--leave-out doc/* matches no file" in str(unused)
    needed = new(repository, *arguments, "--id", "b", "--leave-out", "calc.*").exception
    assert isinstance(needed, UsageError) and "calc.py is named by --leave-out" in str(needed)
    assert len(out.read_text().splitlines()) == 1


def test_a_binary_file_that_the_fix_needs_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "data.bin").write_bytes(b"\0\1")
    (repository / "tests" / "test_calc.py").write_text("import calc, sys\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "More")
    (repository / "data.bin").write_bytes(b"\0\2")
    (repository / "tests" / "test_calc.py").write_text("x = 1\n")
    git(repository, "commit", "-qam", "Fix")
    out = tmp_path / "own.jsonl"
    arguments = ("--tests", "tests", *COMMAND, "--fix", "HEAD", "--out", str(out))
    failed = new(repository, *arguments).exception
    assert isinstance(failed, UsageError)
    assert "data.bin is no text: it holds NUL, and the fix or the tests need it" in str(failed)
    assert not out.exists()


async def test_executable_files_and_tests_keep_their_bit(repository: Path, tmp_path: Path) -> None:
    tool, check = repository / "bin/tool", repository / "tests/check.sh"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "A tool")
    (repository / "calc.py").write_text(BUGGY.replace("a - b", "b + a"))
    check.write_text("#!/bin/sh\ntest $(bin/tool) = tool && grep -q 'b + a' calc.py\n")
    check.chmod(0o755)
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "Fix it")
    out = tmp_path / "own.jsonl"
    made = new(
        repository, "--fix", "HEAD", "--tests", "tests", "--test-command", "tests/check.sh",
        "--out", str(out),
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    task = imported(out)
    assert task.executables == ("bin/tool", "tests/check.sh")
    assert await verdicts(task, tmp_path / "state") == [Verdict.RESOLVED, Verdict.NOT_RESOLVED]


ODD_SETTINGS = (
    *("color.ui=always", "diff.mnemonicPrefix=true", "diff.noprefix=true", "diff.context=0"),
    *("diff.suppressBlankEmpty=true", "diff.submodule=log", "diff.external=/bin/false"),
    *("diff.algorithm=patience", "diff.interHunkContext=9", "diff.wsErrorHighlight=all"),
    *("diff.orderFile=order", "diff.x.textconv=rev", "core.quotePath=false", "diff.renames=copies"),
    *("diff.relative=true", "log.showSignature=true", "diff.colorMoved=zebra"),
    *("diff.ignoreSubmodules=all", "core.pager=false", "core.attributesFile=attributes"),
)


def test_settings_for_a_persons_own_eyes_change_no_row(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attributes").write_text("*.py diff=x\n")
    (repository / "order").write_text("tests/*\n")
    rows = []
    for settings in ((), ODD_SETTINGS):
        for setting in settings:
            name, _, value = setting.partition("=")
            git(repository, "config", name, value.replace("attributes", f"{tmp_path}/attributes"))
        if settings:
            monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
            monkeypatch.setenv("GIT_DIR", str(tmp_path))
            monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
        out = tmp_path / f"{len(rows)}.jsonl"
        made = new(repository, "--fix", "HEAD", "--tests", "tests", *COMMAND, "--out", str(out))
        assert made.exit_code == 0, made.output
        rows.append(out.read_text())
    assert rows[0] == rows[1]
