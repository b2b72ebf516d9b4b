"""`mainspring db upgrade` and `mainspring db current`."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import typer
from sqlalchemy import text
from typer.testing import CliRunner

from cli.machine import db
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from mainspring.config.settings import Settings
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
    assert answer == {
        "current": upgrade.head(),
        "needed": upgrade.head(),
        "ready": True,
        "oldest_accepted": upgrade.oldest(),
        "processes": [],
    }


async def test_current_lists_who_is_connected(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", fresh_database)
    await _run("upgrade", "--home", str(tmp_path))
    async with open_database(Settings(database_url=fresh_database), PoolRole.NODE):
        told = await _run("current", "--home", str(tmp_path))
        answer = json.loads(await _run("current", "--home", str(tmp_path), "--json"))
    [process] = answer["processes"]
    assert (process["role"], process["pid"]) == ("node", os.getpid())
    assert process["schema"] == upgrade.head()
    assert f"connected: node {os.getpid()}@" in told


async def test_a_newer_schema_that_accepts_this_program_is_no_fault(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", fresh_database)
    monkeypatch.setenv("MAINSPRING_HOME", str(tmp_path))
    await _run("upgrade")
    async with Database.open(fresh_database) as db, db.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert (
        await _run("upgrade") == f"already at 9999, which accepts this program ({upgrade.head()})\n"
    )
    assert f"9999 (accepts this program, {upgrade.head()})" in await _run("current")


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
