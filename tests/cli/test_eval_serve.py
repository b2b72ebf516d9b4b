"""`mainspring eval run --serve`: real engines, which end with their command however that ends."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from cluster import bwrap_or_skip
from typer.testing import CliRunner

from bundled.model import make_bundled_model
from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.stack import ports
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus
from tests.waiting import until

FILE = """
[tasks]
source = "bundled"
[agent]
kind = "bundled"
step_limit = 3
max_format_errors = 2
[policy]
max_new_tokens = 32
[run]
split = "heldout"
"""


class Command:
    """`eval run --serve` in a process of its own."""

    def __init__(self, stack: StackInfo, folder: Path, name: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mainspring", "eval", "run", "--name", name, "--json"),
                *("--home", str(stack.home), "--output", str(folder / "output"), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def engines(self) -> list[psutil.Process]:
        try:
            children = psutil.Process(self.process.pid).children()
            return [each for each in children if "serve" in each.cmdline()]
        except psutil.NoSuchProcess:
            return []

    async def end(self) -> tuple[int, str, str]:
        printed, said = await asyncio.to_thread(self.process.communicate, timeout=300)
        return self.process.returncode, printed.decode(), said.decode()


@pytest.fixture
async def served(
    tmp_path: Path, stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A model's folder and a file."""
    await bwrap_or_skip(tmp_path)
    monkeypatch.setenv("MAINSPRING_NODE_ID", "eval-serve")
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    model, file = tmp_path / "model", tmp_path / "eval.toml"
    await asyncio.to_thread(make_bundled_model, model, 0)
    file.write_text(FILE)
    return model, file


async def config_of(db: Database, name: str) -> EvaluationConfig:
    config = (await campaigns.get(db, CampaignId(name))).config
    assert isinstance(config, EvaluationConfig)
    return config


async def test_the_engine_is_started_for_the_run_and_ends_with_it(
    stack: StackInfo, tmp_path: Path, served: tuple[Path, Path]
) -> None:
    model, file = served
    command = Command(stack, tmp_path, "served", str(file), "--serve", str(model), "--limit", "2")
    await until(lambda: command.engines())
    [engine] = command.engines()
    code, printed, said = await command.end()
    assert code == 0, said
    assert json.loads(printed)["scored"] == 2 and f"the CPU engine serves {model} at" in said
    assert not engine.is_running()
    async with Database.open(stack.database_url) as db:
        config = await config_of(db, "served")
        [url] = config.policy.engines
        # The folder's own context, which is below the usual one; a port of its own.
        own = json.loads((model / "config.json").read_text())["max_position_embeddings"]
        assert config.serve and config.policy.max_context == own
        assert ports.is_free(urlsplit(url).port or 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_no_engine_outlives_its_command_and_a_repeat_resumes(
    stack: StackInfo, tmp_path: Path, served: tuple[Path, Path], number: signal.Signals
) -> None:
    model, file = served
    name = f"cut-by-{number.name.lower()}"
    options = [str(file), "--serve", str(model), "--limit", "40", "--concurrency", "2"]
    command = Command(stack, tmp_path, name, *options)
    async with Database.open(stack.database_url) as db:

        async def has_some() -> bool:
            if await campaigns.find(db, CampaignId(name)) is None:
                return False
            played = await rollouts.list_rollouts(db, campaign=CampaignId(name))
            return any(each.verdict is not None for each in played)

        await until(has_some, 200)
        [engine] = command.engines()
        command.process.send_signal(number)
        code, _, said = await command.end()
        assert code == (130 if number is signal.SIGINT else -number)
        await until(lambda: not engine.is_running() or engine.status() == "zombie")
        if number is signal.SIGINT:
            assert f"eval run --name {name}" in said
        record = await campaigns.get(db, CampaignId(name))
        assert record.status is not CampaignStatus.FINISHED
        before = (await config_of(db, name)).policy.engines
        # By its name alone, at the stored address.
        code, printed, said = await Command(stack, tmp_path, name).end()
        assert code == 0, said
        assert json.loads(printed)["scored"] == 40
        assert (await config_of(db, name)).policy.engines == before


async def test_what_cannot_be_served_is_refused_before_anything_starts(
    tmp_path: Path, served: tuple[Path, Path]
) -> None:
    model, file = served
    home = tmp_path / "no-home"
    no_tokenizer = tmp_path / "no-tokenizer"
    no_tokenizer.mkdir()
    (no_tokenizer / "config.json").write_text((model / "config.json").read_text())
    here, elsewhere = "http://127.0.0.1:1", "http://elsewhere:1"
    for options, told in (
        (["--serve", str(tmp_path / "gone")], "no such directory"),
        (["--serve", str(tmp_path)], f"model directory {tmp_path}: no config.json"),
        (["--serve", str(no_tokenizer)], f"model directory {no_tokenizer}: no tokenizer"),
        (["--serve", str(model), "--base-url", here], "--serve and --base-url exclude each other"),
        (["--serve", str(model), "--api", "openai"], "--serve and --api exclude each other"),
        (
            ["--serve", str(model), "--set", "policy.max_context=1000000"],
            "policy.max_context = 1000000, and the model",
        ),
        (
            ["--model", str(model), "--base-url", elsewhere, "--set", "run.serve=true"],
            "run.serve starts one engine on this machine",
        ),
    ):
        arguments = ["eval", "run", str(file), *options, "--home", str(home)]
        ended = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert isinstance(ended.exception, UsageError), ended.output
        assert told in ended.exception.message and ended.exception.exit_code == 2
        assert not home.exists()


async def test_an_address_that_answers_is_not_taken_for_its_engine(
    stack: StackInfo, tmp_path: Path, served: tuple[Path, Path]
) -> None:
    model, file = served
    # Something of this machine that answers HTTP: Temporal's own pages.
    taken = f"http://127.0.0.1:{urlsplit(stack.temporal_ui).port}"
    options = ["--model", str(model), "--base-url", taken, "--set", "run.serve=true"]
    arguments = ["eval", "run", str(file), *options, "--home", str(stack.home), "--name", "taken"]
    ended = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert isinstance(ended.exception, UsageError)
    assert f"{taken} answers already" in ended.exception.message
    async with Database.open(stack.database_url) as db:
        assert await campaigns.find(db, CampaignId("taken")) is None
