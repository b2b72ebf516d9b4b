"""Rows that no sandbox can run, no patch can resolve or no database can store: refused one by one.

Through the command and a real store; the sound rows beside them are stored.
"""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.tasks import tasks
from infra.db.database import Database
from infra.db.tasks import tasks as stored
from mainspring.errors import WorkFailed

FIX = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
LOG = {"kind": "test_log", "parser": "parse_log_pytest"}
IMPOSSIBLE = {
    "blank issue": ({"issue": " \n"}, "issue is blank"),
    "blank command": ({"test_command": "  "}, "test_command is blank"),
    "endless timeout": ({"test_timeout_s": 1e300}, "test_timeout_s must be at most"),
    "no FAIL_TO_PASS": ({"judge": LOG | {"fail_to_pass": []}}, "fail_to_pass is empty"),
    "a test without a name": ({"judge": LOG | {"fail_to_pass": ["a", " "]}}, "blank name"),
    "no gold": ({"gold_patch": ""}, "gold_patch is empty"),
    "blank gold": ({"gold_patch": "\n"}, "gold_patch is empty"),
    "gold of another repository": (
        {"gold_patch": FIX.replace("a.py", "b.py")},
        "changes 'b.py', which is not among the task's files",
    ),
    "gold is the test": ({"gold_patch": FIX, "tests": {"a.py": ""}}, "nothing but hidden tests"),
    "gold up and out": (
        {"files": {}, "image": "a/b", "gold_patch": FIX.replace("a.py", "../a.py")},
        "gold_patch: '../a.py' is not relative",
    ),
    "an absolute file": ({"files": {"/etc/passwd": ""}}, "files: '/etc/passwd' is not relative"),
    "a file up and out": ({"files": {"a/../../b": ""}}, "is not relative to its folder"),
    "a file of git's": ({"files": {"a/.GIT/config": ""}}, "inside a git directory"),
    "a file without a name": ({"files": {"": ""}}, "'' is empty"),
    "a file and a folder": ({"files": {"a": "", "a/b": ""}}, "'a' is a file and a folder"),
    "a file twice": ({"files": {"a": "", "./a": ""}}, "is taken twice"),
    "a long name": ({"files": {"n" * 256: ""}}, "is too long"),
    "a test outside": ({"tests": {"/usr/bin/python3": ""}}, "neither in the repository nor below"),
    "a solution without its script": ({"solution": {"fix.py": ""}}, "solution has no solve.sh"),
    "no absolute workdir": ({"workdir": "testbed"}, "not an absolute path"),
    "workdir up": ({"workdir": "/a/../.."}, "not an absolute path"),
    "the root": ({"workdir": "//"}, "is taken"),
    "the node's own": ({"workdir": "/usr/src/app"}, "is taken"),
    "a workdir of the kernel's": ({"files": {}, "image": "a/b", "workdir": "/proc/x"}, "is taken"),
    "a workdir of two lines": ({"workdir": "/a\nb"}, "cannot be the path of a folder"),
    "no name of an image": ({"files": {}, "image": "https://A/B"}, "not the name of an image"),
    "no threshold": ({"judge": {"kind": "reward_file", "threshold": float("nan")}}, "threshold"),
}
UNSTORABLE = {
    "half a pair": {"issue": "x \ud800"},
    "half a pair in a file": {"files": {"a.py": "\udcff"}},
    "half a pair in a name": {"files": {"a\udc80.py": ""}},
    "half a pair in a key": {"metadata": {"\ud800": "x"}},
    "NUL": {"issue": "x \0"},
}


def row(id: str, fields: dict[str, object]) -> dict[str, object]:
    sound = {"id": id, "issue": "Mend it", "files": {"a.py": "x = 1\n"}, "test_command": "true"}
    return sound | fields


@pytest.fixture
def home(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    return tmp_path


async def import_file(home: Path, rows: list[dict[str, object]], *more: str):
    file = home / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    app = typer.Typer()
    app.add_typer(tasks.app)
    # the command runs an event loop of its own
    arguments = ["tasks", "import", str(file), *more]
    return file, await asyncio.to_thread(CliRunner().invoke, app, arguments)


async def test_impossible_rows_are_refused_by_line_id_and_reason(db: Database, home: Path) -> None:
    bad = [row(f"bad-{i}", fields) for i, (fields, _) in enumerate(IMPOSSIBLE.values())]
    rows = [row("first", {}), *bad, row("last", {"gold_patch": FIX})]
    _, said = await import_file(home, rows, "--json")
    assert isinstance(said.exception, WorkFailed)
    failed = json.loads(said.stdout)["failed"]
    assert await stored.task_ids(db, "rows", "train") == ["first", "last"]
    assert [each["line"] for each in failed] == list(range(2, len(rows)))
    for each, (name, (_, reason)) in zip(failed, IMPOSSIBLE.items(), strict=True):
        assert reason in each["reason"], (name, each["reason"])


async def test_text_that_cannot_be_stored_is_its_rows_error_alone(db: Database, home: Path) -> None:
    bad = [row(f"bad-{i}", fields) for i, fields in enumerate(UNSTORABLE.values())]
    bad.append(row("\ud800", {}))
    file, said = await import_file(home, [row("first", {}), *bad, row("last", {})])
    assert isinstance(said.exception, WorkFailed) and said.exception.exit_code == 4
    assert await stored.task_ids(db, "rows", "train") == ["first", "last"]
    lines = [line for line in said.stdout.splitlines() if line.startswith(str(file))]
    assert [line.split()[0] for line in lines] == [f"{file}:{i + 2}" for i in range(len(bad))]
    assert "2 new, 0 same" in said.stdout
