"""`mainspring rollout label`, and the commands that choose by label, at 80 columns."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from infra.db.database import Database
from mainspring.errors import MainspringError, UsageError
from tests.infra.db.store_records import add_group, begin_campaign
from tests.view.viewed import Told, play

NAME = "mine"
FIRST, SECOND, THIRD = (f"{NAME}/g000000/00{n}" for n in range(3))


@pytest.fixture
async def store(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    await begin_campaign(db, NAME)
    _, ids = await add_group(db, size=3, campaign=NAME)  # pyright: ignore
    for rollout in ids:
        await play(db, rollout, Told())
    return db


async def run(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["rollout", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


async def test_labels_are_given_shown_and_chosen_by(store: Database, tmp_path: Path) -> None:
    told = await run("label", FIRST, "g000000/001", "--add", "good", "--note", "a clean fix")
    assert told == "2 rollouts: good added, note 'a clean fix'\n"
    told = await run("label", FIRST, SECOND, THIRD, "--add", "good", "--remove", "bad")
    assert told == "3 rollouts, of which 1 changed: good added, bad removed\n"
    assert await run("label", FIRST, "--add", "good") == f"{FIRST}: nothing to change\n"
    done = json.loads(await run("label", THIRD, "--remove", "good", "--json"))
    assert done == {"rollouts": [THIRD], "changed": [THIRD]}
    rows = json.loads(await run("list", NAME, "--label", "good", "--json"))
    assert [(row["id"], row["labels"]) for row in rows] == [(FIRST, ["good"]), (SECOND, ["good"])]
    listed = await run("list", NAME)
    assert "labels" in listed and all(len(line) <= 80 for line in listed.splitlines())
    shown = await run("show", FIRST)
    assert "label      good, by " in shown and ", attempt 1:\n  a clean fix\n" in shown
    document = json.loads(await run("show", FIRST, "--json"))
    assert document["labels"][0]["name"] == "good" and document["note"]["text"] == "a clean fix"
    out = tmp_path / "chats.jsonl"
    told = await run("export", str(out), "--campaign", NAME, "--format", "sft", "--label", "good")
    assert told.startswith("2 rollouts written") and len(out.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["label", FIRST], "nothing is to be changed"),
        (["label", FIRST, "--add", "Very Good"], "cannot be the name of a label"),
        (["label", FIRST, "--add", "a", "--remove", "a"], "to be added and removed"),
        (["label", FIRST, "--note", "x" * 4001], "the note has 4,001 characters"),
        (["label", "mine/g000000/009", "--add", "good"], "no rollout mine/g000000/009"),
        (["list", NAME, "--label", "goood"], "has no rollout with the label 'goood'"),
        (["export", "x", "--campaign", NAME, "--label", "odd"], "has no rollout with the label"),
        (["search", "x", "labl:good"], "did you mean label"),
    ],
)
async def test_bad_input_is_named(store: Database, arguments: list[str], message: str) -> None:
    await run("label", SECOND, "--add", "good")
    with pytest.raises(MainspringError, match=message) as raised:
        await run(*arguments)
    assert isinstance(raised.value, UsageError) and raised.value.remedy
    assert not json.loads(await run("show", FIRST, "--json"))["labels"]
