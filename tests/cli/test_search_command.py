"""`mainspring rollout search` and `mainspring db reindex`, at 80 columns."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from infra.db.database import Database
from infra.db.rollouts import search_pieces
from mainspring.errors import UsageError
from tests.infra.db.store_records import add_group, begin_campaign
from tests.view.viewed import Told, play

NAME = "a-campaign-with-a-long-name-of-32-"
PROGRAM = b"E   ModuleNotFoundError: No module named 'attrs' \x1b[2J" + b"and more " * 60


@pytest.fixture
async def store(
    db: Database, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", store_url)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    await begin_campaign(db, NAME)
    _, ids = await add_group(db, size=2, campaign=NAME)  # pyright: ignore
    for rollout in ids:
        await play(db, rollout, Told(output=PROGRAM), num_turns=2)
    return db


async def run(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


async def test_places_are_listed_with_their_counts(store: Database) -> None:
    missing = await run("rollout", "search", "attrs")
    assert "nothing matches" in missing and "2 rollouts cannot be searched yet" in missing
    assert await run("db", "reindex") == "2 rollouts can be searched\n"
    told = await run("rollout", "search", "no module named", "exit:1", "--campaign", NAME)
    lines = told.splitlines()
    place, *facts = lines[0].split()
    assert place == f"{NAME}/g000000/001"
    assert " ".join(facts) == "turn 2 output exit 1 resolved"
    assert lines[1].startswith("  E ModuleNotFoundError: No module named 'attrs'")
    assert lines[-1] == "2 places in 2 rollouts of 1 task"
    assert "\x1b" not in told and all(len(line) <= 80 for line in lines)
    document = json.loads(await run("rollout", "search", "attrs", "--limit", "1", "--json"))
    assert (document["num_places"], len(document["hits"])) == (4, 1)
    assert document["rollouts_not_searched"] == 0
    with pytest.raises(UsageError, match="did you mean verdict"):
        await run("rollout", "search", "verdit:resolved")


async def test_an_interrupted_reindex_is_resumed(store: Database) -> None:
    await search_pieces.fill_next(store)
    assert await run("db", "reindex", "--missing") == "1 rollout can be searched\n"
    assert await run("db", "reindex", "--missing") == "0 rollouts can be searched\n"
    assert await run("db", "reindex") == "2 rollouts can be searched\n"
