"""`mainspring tasks import`, `tasks export` and `tasks list --source` on a real store."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.tasks import tasks
from infra.db.database import Database
from infra.db.tasks import tasks as stored
from infra.db.tasks.tasks import ImportFate, import_tasks
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask

GUESS_ROWS = Path(__file__).parents[2] / "examples" / "own-environment" / "tasks.jsonl"
SWE_ROWS = Path(__file__).parents[1] / "data" / "swe-rows.jsonl"


def make_task(id: str, issue: str = "") -> SweTask:
    return SweTask(
        id=TaskId(id), source="s", split="train", issue=issue, files={"a": ""}, test_command="true"
    )


@pytest.fixture
def home(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


async def ask(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.add_typer(tasks.app)
    # the command runs an event loop of its own
    return await asyncio.to_thread(CliRunner().invoke, app, ["tasks", *map(str, arguments)])


async def test_each_task_has_its_own_fate(db: Database) -> None:
    batch = [make_task("1"), make_task("1"), make_task("1", "else"), make_task("2", "\0")]
    first = [ImportFate.NEW, ImportFate.SAME, ImportFate.OTHER_CONTENT, ImportFate.NOT_STORABLE]
    assert await import_tasks(db, batch) == first
    again = [make_task("3"), make_task("1", "else"), make_task("1")]
    assert await import_tasks(db, again) == [
        ImportFate.NEW,
        ImportFate.OTHER_CONTENT,
        ImportFate.SAME,
    ]
    assert await stored.get_tasks(db, "s", "train") == [make_task("1"), make_task("3")]
    with pytest.raises(UsageError, match="NUL"):
        await stored.put_tasks(db, [make_task("4"), make_task("5", "\0")])
    assert await stored.task_ids(db, "s", "train") == ["1", "3"]


async def test_tasks_of_another_kind_go_in_and_out_the_same(db: Database, home: Path) -> None:
    done = await ask("import", GUESS_ROWS, "--name", "guess")
    assert done.exit_code == 0 and "3 new" in done.stdout
    # They have no tests that could be verified.
    assert "tasks verify" not in done.output
    listed = json.loads((await ask("list", "--source", "guess", "--json")).stdout)
    assert {each["judge"] for each in listed} == {"guess"}
    assert (await ask("export", home / "out", "--source", "guess")).exit_code == 0
    again = await ask("import", home / "out" / "eval.jsonl")
    assert "0 new, 3 same, 0 failed" in again.stdout
    wrong = home / "wrong.jsonl"
    wrong.write_text('{"id": "g", "kind": "Guess!", "issue": "x"}\n{"id": "h", "kind": "g"}\n')
    failed = await ask("import", wrong, "--json")
    assert isinstance(failed.exception, WorkFailed)
    reasons = [each["reason"] for each in json.loads(failed.stdout)["failed"]]
    assert "kind: String should match pattern" in reasons[0] and len(reasons) == 2


async def test_imported_exported_and_imported_again(db: Database, home: Path) -> None:
    done = await ask("import", SWE_ROWS, "--name", "swe", "--split", "test")
    assert done.exit_code == 0 and "3 new, 0 same, 0 failed" in done.stdout
    assert "3 new" not in (again := await ask("import", SWE_ROWS, "--name=swe")).stdout
    # Another split is other content under the same id.
    assert isinstance(again.exception, WorkFailed) and again.exception.exit_code == 4
    hashes = [task.content_hash for task in await stored.get_tasks(db, "swe", None)]

    out = home / "out"
    mirror = ("--mirror", "mirror.example/hub")
    written = json.loads((await ask("export", out, "--source=swe", *mirror, "--json")).stdout)
    assert written[str(out / "eval.jsonl")] == 3
    assert (out / "instance_ids.txt").read_text().split() == [
        "getmoto__moto-7365",
        "django__django-10973",
        "scikit-learn__scikit-learn-14141",
    ]
    assert (out / "docker_images.txt").read_text().splitlines()[0] == (
        "mirror.example/hub/xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest"
    )
    line = json.loads((out / "eval.jsonl").read_text().splitlines()[1])
    assert line["metadata"]["data_source"] == "swe"
    assert line["metadata"]["instance"]["instance_id"] == "django__django-10973"
    assert line["text"] == line["metadata"]["instance"]["problem_statement"]

    same = json.loads((await ask("import", out / "eval.jsonl", "--json")).stdout)
    assert (same["num_new"], same["num_same"]) == (0, 3)
    assert same["splits"] == [{"source": "swe", "split": "test", "num_tasks": 3}]
    assert [task.content_hash for task in await stored.get_tasks(db, "swe", "test")] == hashes
    assert isinstance((await ask("export", out, "--source=nobody")).exception, UsageError)


async def test_failed_rows_are_named_and_the_rest_is_stored(db: Database, home: Path) -> None:
    rows = [json.loads(line) for line in SWE_ROWS.read_text().splitlines()]
    bad = [rows[0] | {"instance_id": f"bad-{i}", "patch": "no\npatch"} for i in range(25)]
    file = home / "rows.jsonl"
    lines = [*bad, rows[1], rows[1] | {"problem_statement": "else"}, rows[2] | {"repo": "a\0b"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in lines))
    said = await ask("import", file)
    assert isinstance(said.exception, WorkFailed) and "27 of 28" in said.exception.message
    assert f"{file}:1 bad-0: patch is not a git patch" in said.stdout
    assert f"{file}:20 bad-19:" in said.stdout and "bad-20" not in said.stdout
    assert "... and 7 more failed" in said.stdout and "1 new, 0 same, 27 failed" in said.stdout
    assert await stored.task_ids(db, "rows", "train") == ["django__django-10973"]

    everything = json.loads((await ask("import", file, "--json")).stdout)["failed"]
    assert [each["line"] for each in everything] == [*range(1, 26), 27, 28]
    assert [each["problem"] for each in everything[-2:]] == ["other_content", "no_spec"]
    assert everything[25]["id"] == "django__django-10973"

    some = await ask("import", file, "--filter", "django|bad-3$", "--limit", "2", "--json")
    counts = json.loads(some.stdout)
    assert (counts["num_same"], [each["id"] for each in counts["failed"]]) == (1, ["bad-3"])
    assert isinstance((await ask("import", file, "--filter", "(")).exception, UsageError)


async def test_tasks_of_a_source_are_listed_in_100_columns(db: Database, home: Path) -> None:
    await ask("import", SWE_ROWS, "--name", "swe")
    harbor = home / "harbor" / "hello"
    for name, text in {"task.toml": "", "instruction.md": "x", "tests/test.sh": "true"}.items():
        (harbor / name).parent.mkdir(parents=True, exist_ok=True)
        (harbor / name).write_text(text)
    (harbor / "environment" / "files").mkdir(parents=True)
    (harbor / "environment" / "files" / "a").write_text("1")
    assert (await ask("import", harbor.parent)).exit_code == 0
    shutil.rmtree(harbor)

    listed = (await ask("list", "--source", "swe")).stdout
    assert max(map(len, listed.splitlines())) <= 100
    assert "scikit-learn__scikit-learn-14141" in listed and "test_log" in listed
    rows = json.loads((await ask("list", "--source", "swe", "--json")).stdout)
    assert [row["num_tests"] for row in rows] == [2, 5, 3]
    [row] = json.loads((await ask("list", "--source", "harbor", "--json")).stdout)
    assert row == {
        "id": "hello", "split": "train", "image": None, "judge": "reward_file", "num_tests": 1,
    }  # fmt: skip
    no_split = (await ask("list", "--source", "swe", "--split", "x", "--json")).exception
    assert isinstance(no_split, UsageError) and "its splits: train" in no_split.remedy
    assert isinstance((await ask("list", "--split", "x")).exception, UsageError)


def own(id: str, **fields: object) -> str:
    row = {"id": id, "issue": "x", "files": {"a.py": ""}, "test_command": "true"}
    return json.dumps(row | fields) + "\n"


async def test_one_id_is_one_task_of_an_import_whatever_is_replaced(
    db: Database, home: Path
) -> None:
    file = home / "twice.jsonl"
    file.write_text(own("a") + own("b") + own("a") + own("a", issue="other"))
    for options in ((), ("--replace",)):
        done = await ask("import", file, "--name", "twice", *options)
        assert isinstance(done.exception, WorkFailed)
        first = f"its id stands twice in this import: {file}:1 has it with other content"
        told = " ".join(done.stdout.split())
        assert f"{file}:4 a: {first}" in told and "1 failed" in told
    found = {task.id: task.issue for task in await stored.get_tasks(db, "twice", "train")}
    assert found == {"a": "x", "b": "x"}


async def test_text_that_the_store_cannot_hold_is_a_failed_row(db: Database, home: Path) -> None:
    log = {"kind": "test_log", "parser": "parse_log_pytest"}
    rows = []
    for number, odd in enumerate(("\ud800", "a\0b", "\udfff\ud800")):
        rows += [
            own(f"{number}-issue", issue=odd),
            own(f"{number}-text", files={"a.py": odd}),
            own(f"{number}-path", files={odd: ""}),
            own(f"{number}-test", tests={"t.py": odd}),
            own(f"{number}-command", test_command=odd),
            own(f"{number}-agent", agent_name=odd),
            own(f"{number}-key", metadata={odd: "x"}),
            own(f"{number}-value", metadata={"x": odd}),
            own(f"{number}-name", judge=log | {"fail_to_pass": [odd]}),
            own(f"{number}-repo", judge=log | {"fail_to_pass": ["a"], "repo": odd}),
            own(f"{number}-data", kind="guess", data={"secret": [odd]}),
            own(f"{number}-id{odd}"),
            own(f"{number}-split", split=odd),
        ]
    file = home / "odd.jsonl"
    file.write_text(own("first") + "".join(rows) + own("last"))
    done = await ask("import", file, "--name", "odd", "--json")
    assert isinstance(done.exception, WorkFailed), done.exception
    told = json.loads(done.stdout)
    assert told["num_new"] == 2 and told["num_failed"] == len(rows), told
    assert {task.id for task in await stored.get_tasks(db, "odd", "train")} == {"first", "last"}


async def test_an_import_that_leaves_out_every_row_is_refused(db: Database, home: Path) -> None:
    rows = home / "rows.jsonl"
    rows.write_text(json.dumps(json.loads(own("a")) | {"split": "train"}) + "\n")
    (home / "empty.jsonl").write_text("\n")
    for given, words, remedy in (
        ((rows, "--split", "test"), "no row of split 'test'", "--split"),
        ((rows, "--filter", "^z"), "no row with an id that --filter '^z' matches", "--filter"),
        ((rows, "--split=test", "--filter=^z"), "of split 'test' and with", "--split and --filter"),
        ((home / "empty.jsonl",), "has no rows", "right file"),
    ):
        done = await ask("import", *given)
        assert isinstance(done.exception, UsageError), done.output
        assert words in done.exception.message and remedy in done.exception.remedy
    assert await stored.list_splits(db) == []
