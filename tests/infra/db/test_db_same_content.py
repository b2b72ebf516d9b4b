"""Equal tasks are the same, however their keys are ordered and however they were hashed before."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
import typer
from sqlalchemy import update
from typer.testing import CliRunner, Result

from cli.tasks import tasks
from infra.db.database import Database
from infra.db.tables.models import TaskRow
from infra.db.tasks import tasks as stored
from infra.db.tasks.tasks import ImportFate, import_tasks, put_tasks
from mainspring.errors import UsageError
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask

NUM_HARBOR = 40


@pytest.fixture
def home(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    return tmp_path


async def ask(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.add_typer(tasks.app)
    # the command runs an event loop of its own
    return await asyncio.to_thread(CliRunner().invoke, app, ["tasks", *map(str, arguments)])


def harbor_folder(top: Path) -> Path:
    for number in range(NUM_HARBOR):
        files = {
            "task.toml": '[metadata]\nlevel = "easy"\nauthor = "me"\n',
            "instruction.md": f"Mend number {number}",
            "tests/test.sh": "bash /tests/more.sh",
            "tests/more.sh": "echo 1 >/logs/verifier/reward.txt",
            "tests/a.txt": "",
            "solution/solve.sh": "cp /solution/z z",
            "solution/a": "1",
            "environment/files/zzz/b.py": "1",
            "environment/files/a.py": "2",
        }
        for name, text in files.items():
            path = top / f"task-{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return top


@pytest.mark.parametrize("options", [(), ("--id-prefix", "p.")])
async def test_exported_tasks_are_imported_as_the_same(
    db: Database, home: Path, options: tuple[str, ...]
) -> None:
    source = harbor_folder(home / "harbor")
    assert f"{NUM_HARBOR} new, 0 same, 0 failed" in (await ask("import", source, *options)).stdout
    await ask("export", home / "out", "--source", "harbor")
    for again in ((), options):
        found = json.loads((await ask("import", home / "out/eval.jsonl", "--json", *again)).stdout)
        assert (found["num_new"], found["num_same"], found["failed"]) == (0, NUM_HARBOR, [])
    assert len(await stored.task_ids(db, "harbor", "train")) == NUM_HARBOR


def test_the_order_of_keys_is_no_content() -> None:
    fields = {"files": {"a": "1", "b": "2"}, "metadata": {"x": "1", "y": "2"}}
    backwards = {key: dict(reversed(each.items())) for key, each in reversed(fields.items())}
    assert make_task(**fields).content_hash == make_task(**backwards).content_hash
    swapped = fields | {"files": {"a": "2", "b": "1"}}
    assert make_task(**fields).content_hash != make_task(**swapped).content_hash


def make_task(issue: str = "x", **fields: object) -> SweTask:
    shared = {"id": TaskId("t"), "source": "s", "split": "train", "test_command": "true"}
    return SweTask.model_validate({"files": {"a": ""}, "issue": issue, **shared, **fields})


async def test_a_task_hashed_in_another_way_is_recognised_by_its_content(db: Database) -> None:
    task = make_task()
    await put_tasks(db, [task])
    # As hashes were made of tasks stored before: the fields as they come, defaults among them.
    newer = {"allow_hosts", "test_patch", "judge", "gold_patch", "solution", "agent_name"}
    newer |= {"base_patch", "hidden_files", "id"}
    before = hashlib.sha256(task.model_dump_json(exclude=newer).encode()).hexdigest()
    assert before != task.content_hash
    async with db.transaction() as connection:
        await connection.execute(update(TaskRow).values(content_hash=before))
    assert await import_tasks(db, [task]) == [ImportFate.SAME]
    assert await put_tasks(db, [task]) == 0
    assert await import_tasks(db, [make_task("other")]) == [ImportFate.OTHER_CONTENT]
    with pytest.raises(UsageError, match="other content: t"):
        await put_tasks(db, [make_task("other")])
