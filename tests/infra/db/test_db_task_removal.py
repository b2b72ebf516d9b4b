"""`tasks remove` and `import --replace`: only what no campaign has used, and all or nothing."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.tasks import tasks
from infra.db.database import Database
from infra.db.rollouts import groups
from infra.db.rollouts.groups import NewRollout
from infra.db.runs import campaigns
from infra.db.tasks import tasks as stored
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import CampaignId, TaskId, group_id, rollout_id
from mainspring.status import GroupKind


@pytest.fixture
def home(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


async def ask(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.add_typer(tasks.app)
    # the command runs an event loop of its own
    return await asyncio.to_thread(CliRunner().invoke, app, ["tasks", *map(str, arguments)])


def write_rows(home: Path, issues: dict[str, str], split: str = "train") -> Path:
    rows = [
        {"id": id, "issue": issue, "split": split, "files": {"a": ""}, "test_command": "true"}
        for id, issue in issues.items()
    ]
    file = home / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


async def use(db: Database, task: str) -> None:
    """As a campaign with one rollout does."""
    campaign = CampaignId("used-it")
    config = CampaignConfig(
        name=campaign, policy=PolicyConfig(model="none"), tasks=TasksConfig(source="else")
    )
    await campaigns.create(db, config)
    group = group_id(campaign, 0)
    await groups.create_group(
        db,
        group,
        campaign,
        GroupKind.TRAIN,
        policy_version=0,
        split="train",
        index=0,
        task=TaskId(task),
        rollouts=[NewRollout(rollout_id(group, 0), TaskId(task), 0, 1.0)],
    )


async def test_unused_tasks_and_sources_are_removed(db: Database, home: Path) -> None:
    await ask("import", write_rows(home, dict.fromkeys("abcd", "x")))
    said = await ask("remove", "--source", "own", "b", "--json")
    assert json.loads(said.stdout) == {"source": "own", "num_removed": 1}
    assert await stored.task_ids(db, "own", "train", limit=2) == ["a", "c"]
    await ask("import", write_rows(home, {"b": "corrected"}))
    assert await stored.task_ids(db, "own", "train") == ["a", "c", "d", "b"]
    await use(db, "c")
    for arguments in (("c", "d"), ()):
        refused = (await ask("remove", "--source", "own", *arguments)).exception
        assert isinstance(refused, UsageError) and "c by campaign used-it" in refused.message
    absent = (await ask("remove", "--source", "own", "a", "nope")).exception
    assert isinstance(absent, UsageError) and "nope" in absent.message
    assert len(await stored.task_ids(db, "own", "train")) == 4
    assert (await ask("remove", "--source", "own", "a", "b", "d")).exit_code == 0
    assert await stored.task_ids(db, "own", "train") == ["c"]
    await ask("import", write_rows(home, {"e": "x"}), "--name", "other")
    assert "1 task of other removed" in (await ask("remove", "--source", "other")).stdout
    assert [each.source for each in await stored.list_splits(db)] == ["own"]


async def test_what_nothing_used_is_replaced_in_its_place(db: Database, home: Path) -> None:
    await ask("import", write_rows(home, dict.fromkeys("abc", "wrong")))
    await use(db, "b")
    file = write_rows(home, dict.fromkeys("abc", "right"))
    plain = await ask("import", file)
    assert isinstance(plain.exception, WorkFailed) and "--replace" in plain.stdout
    said = await ask("import", file, "--replace", "--json")
    assert isinstance(said.exception, WorkFailed)
    found = json.loads(said.stdout)
    assert (found["num_replaced"], found["num_new"], found["num_failed"]) == (2, 0, 1)
    assert found["failed"][0]["id"] == "b" and "has used it" in found["failed"][0]["reason"]
    kept = {task.id: task.issue for task in await stored.get_tasks(db, "own", "train")}
    assert kept == {"a": "right", "b": "wrong", "c": "right"} and list(kept) == ["a", "b", "c"]
    again = json.loads((await ask("import", file, "--replace", "--json")).stdout)
    assert (again["num_replaced"], again["num_same"]) == (0, 2)
    moved = await ask("import", write_rows(home, {"a": "x"}, "test"), "--replace")
    assert isinstance(moved.exception, WorkFailed)
    assert await stored.task_ids(db, "own", "test") == []


async def test_an_unknown_source_is_an_error_that_lists_the_known(db: Database, home: Path) -> None:
    empty = (await ask("list", "--source", "own")).exception
    assert isinstance(empty, UsageError) and "import tasks first" in empty.remedy
    await ask("import", write_rows(home, {"a": "x"}))
    for command in (
        ("list", "--source", "owm"),
        ("images", "--source", "owm"),
        ("export", home / "out", "--source", "owm"),
        ("remove", "--source", "owm"),
    ):
        failed = (await ask(*command)).exception
        assert isinstance(failed, UsageError) and failed.exit_code == 2, command
        assert "did you mean 'own'?" in failed.message and "own" in failed.remedy
    split = (await ask("list", "--source", "own", "--split", "nope")).exception
    assert isinstance(split, UsageError) and "its splits: train" in split.remedy
