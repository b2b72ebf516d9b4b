"""`mainspring serve` and `mainspring engine`: engines that join a campaign, die, move and leave."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import psutil
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from infra.db.database import Database
from infra.db.nodes import engines
from infra.db.runs import campaigns
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.ids import CampaignId
from mainspring.status import EngineStatus
from migrations import upgrade
from tests.infra.policy.engine_stub import engine_stub
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model
from tests.processes import runs
from tests.waiting import until

CAMPAIGN = CampaignId("fleet")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


@pytest.fixture
async def db(
    fresh_database: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Database]:
    monkeypatch.setenv("MAINSPRING_DATABASE_URL", fresh_database)
    await asyncio.to_thread(upgrade.upgrade, fresh_database)
    policy = PolicyConfig(model=str(model), engines=(), max_context=512, max_new_tokens=64)
    async with Database.open(fresh_database, pool_size=4) as database:
        await campaigns.create(database, CampaignConfig(name=CAMPAIGN, policy=policy))
        yield database


class Serve:
    """`mainspring serve` in a process of its own."""

    def __init__(self, model: Path, *options: str) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [sys.executable, "-m", "mainspring", "serve", "--model", str(model)]
        if "--port" not in options:
            command += ["--port", "0"]
        self.process = subprocess.Popen([*command, *options], stderr=self._said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._said.close()

    @property
    def engines(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    async def end(self) -> tuple[int, str]:
        """Exit code, and everything that was printed."""
        code = await asyncio.to_thread(self.process.wait, 120)
        self._said.seek(0)
        said = self._said.read().decode()
        assert "Traceback" not in said
        return code, said


def joining(name: str) -> list[str]:
    return ["--campaign", CAMPAIGN, "--name", name]


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["engine", *arguments])


async def url_of(db: Database, name: str) -> str:
    """Empty: it is no member, or does not answer."""
    for member in await engines.members(db, CAMPAIGN, ()):
        if member.name == name and member.status is EngineStatus.UP:
            return member.url
    return ""


async def joined(db: Database, name: str) -> bool:
    return bool(await url_of(db, name))


async def test_an_engine_joins_is_started_again_and_comes_back_elsewhere(
    db: Database, model: Path
) -> None:
    with Serve(model, *joining("gpu1")) as first:
        await until(lambda: joined(db, "gpu1"))
        [killed], url = first.engines, await url_of(db, "gpu1")

        os.kill(killed, signal.SIGKILL)
        seen: list[int] = []

        def is_there_again() -> bool:  # looked at once: the process may be started once more
            seen[:] = first.engines
            return not runs(killed) and len(seen) == 1

        await until(is_there_again)
        [second] = seen
        shown = json.loads((await command("list", CAMPAIGN, "--json")).output)
        assert [(each["engine"], each["url"]) for each in shown] == [("gpu1", url)]

        # Whatever its keeper dies of, an engine does not stay behind.
        first.process.kill()
        await until(lambda: not runs(second))
    with Serve(model, *joining("gpu1")) as again:

        async def elsewhere() -> bool:
            return await url_of(db, "gpu1") not in ("", url)

        await until(elsewhere)
        assert [each.name for each in await engines.members(db, CAMPAIGN, ())] == ["gpu1"]
        again.process.send_signal(signal.SIGTERM)
        assert (await again.end())[0] == 0
    assert await engines.members(db, CAMPAIGN, ()) == [], "one that ends in order leaves"


async def test_an_engine_that_is_removed_ends_and_one_name_is_one_process(
    db: Database, model: Path
) -> None:
    with Serve(model, *joining("gpu1")) as first:
        await until(lambda: joined(db, "gpu1"))
        with Serve(model, *joining("gpu1")) as other:
            code, said = await other.end()
        assert code == 2 and "has an engine gpu1 already" in said
        drained = await command("drain", CAMPAIGN, "gpu1", "--wait", "--json")
        assert json.loads(drained.output)["status"] == "drained"
        assert (await command("drain", CAMPAIGN, "gpu1", "--undo")).exit_code == 0
        assert (await command("remove", CAMPAIGN, "gpu1")).exit_code == 0
        code, said = await first.end()
    assert code == 2 and "is not a member of campaign fleet any more" in said


async def test_an_engine_that_does_not_fit_is_refused(
    db: Database, model: Path, tmp_path: Path
) -> None:
    other = save_tiny_model(tmp_path / "other", vocab_size=330)
    with Serve(other, *joining("gpu1")) as refused_one:
        code, said = await refused_one.end()
    assert code == 2 and "vocabulary of 330 tokens" in said
    assert await engines.members(db, CAMPAIGN, ()) == []

    alike = save_tiny_model(tmp_path / "alike")
    text = (alike / "tokenizer.json").read_text()
    (alike / "tokenizer.json").write_text(text + " ")
    for folder, why in ((other, "vocabulary"), (alike, "another tokenizer")):
        with serving(folder) as url:
            refused = await command("add", CAMPAIGN, url)
        assert refused.exit_code != 0 and why in str(refused.exception)
    with serving(model, context_length=256) as url:
        refused = await command("add", CAMPAIGN, url)
        assert "256 tokens, policy.max_context is 512" in str(refused.exception)
    with engine_stub() as stub:
        refused = await command("add", CAMPAIGN, stub.url)
        assert "is not a policy engine" in str(refused.exception)
    for url in ("nowhere", "http://127.0.0.1:1", "ftp://x"):
        assert (await command("add", CAMPAIGN, url)).exit_code != 0
    assert await engines.members(db, CAMPAIGN, ()) == []


async def test_engines_are_added_and_removed_by_hand(db: Database, model: Path) -> None:
    with serving(model) as one, serving(model) as two:
        assert (await command("add", CAMPAIGN, one)).exit_code == 0
        assert (await command("add", CAMPAIGN, two + "/", "--name", "two")).exit_code == 0
        again = await command("add", CAMPAIGN, one, "--name", "other")
        assert "is the address of engine" in str(again.exception)
        named = await command("add", CAMPAIGN, one.replace("127.0.0.1", "localhost"))
        assert "is the address of engine" in str(named.exception)
        again = await command("add", CAMPAIGN, one + "1", "--name", "two")
        assert again.exit_code != 0
        shown = (await command("list", CAMPAIGN)).output
        assert "two" in shown and one in shown and "up" in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert (await command("remove", CAMPAIGN, one)).exit_code == 0
    assert [each.name for each in await engines.members(db, CAMPAIGN, ())] == ["two"]
    unknown = await command("remove", CAMPAIGN, "tow")
    assert "has no engine tow" in str(unknown.exception)
    assert "two" in str(unknown.exception.remedy)  # type: ignore[union-attr]


async def test_an_engine_that_cannot_start_ends_the_command(tmp_path: Path, model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for folder, options, code in (
            (model, ["--context-length", "4096"], 2),
            (model, ["--port", str(taken.getsockname()[1])], 3),
            (tmp_path / "nothing", [], 2),
            (model, ["--name", "gpu1"], 2),
        ):
            with Serve(folder, *options) as refused:
                assert (await refused.end())[0] == code, options
