"""`mainspring db upgrade` and `mainspring db current`."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.machine import db
from mainspring.errors import ConfigError
from migrations import upgrade


async def test_upgrade_then_current(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", fresh_database)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    assert "empty, needs" in await _run("current")
    assert await _run("upgrade") == f"empty -> {upgrade.head()}\n"
    assert await _run("upgrade") == f"already at {upgrade.head()}\n"
    assert "up to date" in await _run("current")
    answer = json.loads(await _run("current", "--json"))
    assert answer == {"current": upgrade.head(), "needed": upgrade.head(), "ready": True}


async def test_without_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSPRING_DATABASE_URL", raising=False)
    with pytest.raises(ConfigError, match="no database is configured"):
        await _run("upgrade", "--home", str(tmp_path))


async def _run(*arguments: str) -> str:
    app = typer.Typer()
    app.add_typer(db.app)
    # In a thread, as on the command line: no event loop of ours around it.
    result = await asyncio.to_thread(CliRunner().invoke, app, ["db", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output
