"""`mainspring tasks list` and `mainspring tasks images`."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import docker
import pytest
import typer
from typer.testing import CliRunner, Result

from cli.tasks import tasks
from infra.db.database import Database
from infra.db.tasks import tasks as stored
from infra.db.tasks.tasks import Split, TaskImage
from infra.sandbox.protocol import BackendUnavailable
from mainspring.errors import ConfigError, WorkFailed
from mainspring.ids import TaskId
from mainspring.tasks.swe_task import SweTask
from tests.image_registry import (
    Front,
    docker_client,
    new_name,
    push,
    remove_images,
    running_front,
    running_registry,
)
from tests.waiting import DEADLINE_S, until

NO_DOCKER = "unix:///nonexistent/docker.sock"


def make_task(id: str, image: str | None, source: str = "swe", split: str = "train") -> SweTask:
    files = {} if image else {"a.py": ""}
    return SweTask(
        id=TaskId(id),
        source=source,
        split=split,
        issue="",
        image=image,
        files=files,
        test_command="true",
    )


@pytest.fixture
def home(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


async def ask(*arguments: str) -> Result:
    app = typer.Typer()
    app.add_typer(tasks.app)
    # the command runs an event loop of its own
    return await asyncio.to_thread(CliRunner().invoke, app, ["tasks", *arguments])


async def test_tasks_are_counted_by_source_and_split(db: Database, home: Path) -> None:
    await stored.put_tasks(
        db,
        [
            make_task("1", "x:1"),
            make_task("2", None),
            make_task("3", None, split="test"),
            make_task("4", "y:1", source="other"),
        ],
    )
    assert await stored.list_splits(db) == [
        Split("other", "train", 1, 1),
        Split("swe", "test", 1, 0),
        Split("swe", "train", 2, 1),
    ]
    said = await ask("list", "--json")
    assert json.loads(said.stdout)[2] == {
        "source": "swe",
        "split": "train",
        "num_tasks": 2,
        "num_with_image": 1,
    }
    assert "swe" in (await ask("list")).stdout


async def test_images_are_distinct_and_in_the_tasks_order(db: Database) -> None:
    await stored.put_tasks(
        db,
        [
            make_task("1", "z"),
            make_task("2", "a"),
            make_task("3", "z"),
            make_task("4", None),
            make_task("5", "b", split="test"),
        ],
    )
    every = await stored.list_images(db)
    assert every == [TaskImage("b", 1), TaskImage("z", 2), TaskImage("a", 1)]
    assert await stored.list_images(db, split="train") == every[1:]
    assert await stored.list_images(db, source="swe", split="train", first=1) == [TaskImage("z", 1)]
    assert await stored.list_images(db, source="else") == []


async def test_without_images_no_docker_is_needed(
    db: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", NO_DOCKER)
    await stored.put_tasks(db, [make_task("1", None)])
    said = await ask("images", "--json")
    assert said.exit_code == 0 and json.loads(said.stdout) == []
    await stored.put_tasks(db, [make_task("2", "x")])
    failed = (await ask("images")).exception
    assert isinstance(failed, BackendUnavailable) and failed.exit_code == 3
    assert isinstance((await ask("images", "--mirror", "https://m")).exception, ConfigError)


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = docker_client()
    yield client
    remove_images(client)
    client.close()


@pytest.fixture
def front(client: docker.DockerClient, tmp_path: Path) -> Iterator[Front]:
    with running_registry(tmp_path) as registry, running_front(registry) as front:
        yield front


@pytest.mark.docker
async def test_missing_images_are_pulled_and_failures_named_at_the_end(
    db: Database, home: Path, client: docker.DockerClient, front: Front
) -> None:
    names = [f"{new_name()}:1" for _ in range(4)]
    for name in names:
        push(client, front.registry, f"hub/library/{name}")
    missing = f"{front.address}/team/missing:1"
    wanted = [missing, *names]
    await stored.put_tasks(db, [make_task(image, image) for image in wanted])

    listed = json.loads((await ask("images", "--json")).stdout)
    assert [row["image"] for row in listed] == wanted
    assert all(row["num_bytes"] is None for row in listed)

    mirror = ("--mirror", f"{front.address}/hub")
    said = await ask("images", "--pull", *mirror, "--json")
    rows = {row["image"]: row for row in json.loads(said.stdout)}
    assert all(rows[name]["num_bytes"] > 0 and rows[name]["error"] is None for name in names)
    assert rows[missing]["num_bytes"] is None
    assert isinstance(said.exception, WorkFailed)
    assert "1 of 5" in said.exception.message and missing in said.exception.message

    client.images.remove(names[0])
    front.asked.clear()
    again = await ask("images", "--pull", *mirror, "--split", "train")
    assert isinstance(again.exception, WorkFailed)
    assert {path.split("/")[-3] for path in front.asked} == {names[0][:-2], "missing"}
    assert "5 images, 1 missing" in again.stdout
    done = await ask("images", "--pull", "--first", "2", *mirror)
    assert isinstance(done.exception, WorkFailed) and "1 of 2" in done.exception.message


@pytest.mark.docker
async def test_interrupted_it_ends_at_once_and_goes_on_later(
    db: Database, home: Path, client: docker.DockerClient, front: Front
) -> None:
    path = f"team/{new_name()}:1"
    push(client, front.registry, path)
    image = f"{front.address}/{path}"
    await stored.put_tasks(db, [make_task("1", image)])
    command = (sys.executable, "-m", "mainspring", "tasks", "images", "--pull")
    front.open.clear()
    # Whoever runs the tests in the background has made them deaf to it.
    hear = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = await asyncio.create_subprocess_exec(
        *command, stderr=PIPE, stdout=PIPE, preexec_fn=hear
    )
    await until(lambda: front.num_waiting > 0)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_S):
        _, said = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in said
    front.open.set()
    assert (await ask("images", "--pull")).exit_code == 0
    assert client.images.get(image)
