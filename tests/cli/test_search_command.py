"""`mainspring rollout search` and `mainspring db reindex`, at 80 columns."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from infra.db.database import Database
from infra.db.rollouts import search_pieces
from mainspring.errors import UsageError
from tests.infra.db.store_records import add_group, begin_campaign
from tests.view.viewed import Told, play
from tests.waiting import until

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


async def test_a_reindex_that_is_killed_leaves_nothing_half_made(store: Database) -> None:
    """Whatever it had done: each rollout is found by its old words or by its new ones."""
    _, ids = await add_group(store, size=60, campaign=NAME, index=1)  # pyright: ignore
    for rollout in ids:
        await play(store, rollout, Told(output=PROGRAM))
    assert await run("db", "reindex") == "62 rollouts can be searched\n"

    async def found() -> int:
        told = await run("rollout", "search", "attrs", "--campaign", NAME, "--limit", "1", "--json")
        return json.loads(told)["num_rollouts"]

    assert await found() == 62
    for _ in range(2):
        words = (sys.executable, "-m", "mainspring", "db", "reindex")
        command = await asyncio.create_subprocess_exec(*words)

        async def has_begun() -> bool:
            return 0 < await search_pieces.num_unsearched(store) < 62

        await until(has_begun)
        command.kill()
        await command.wait()
        assert await found() == 62
    left = await search_pieces.num_unsearched(store)
    assert 0 < left < 62
    assert await run("db", "reindex", "--missing") == f"{left} rollouts can be searched\n"
    assert await found() == 62 and await search_pieces.num_unsearched(store) == 0
