"""A run whose extensions a process elsewhere cannot import is refused before it is stored."""

import asyncio
import re
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.operations.machine import fleet_extensions
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.nodes import nodes
from infra.db.runs import campaigns
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.errors import MainspringError
from mainspring.ids import (
    ROLLOUT_QUEUE,
    CampaignId,
    node_queue,
    trainer_queue,
    waiting_trainer_queue,
    worker_queue,
)
from tests.polling import worker
from tests.waiting import until

NAME = CampaignId("fleet-extensions")
NODE = "fleet-extensions-node"
MODULE = """\
from infra.environments.swe import SweEnvironment
from mainspring.agents.bash import BashAgent


class Agent(BashAgent):
    pass


class Environment(SweEnvironment):
    pass


def loss(tokens, trainer):
    raise NotImplementedError


def reward(outcome):
    return 1.0
"""
FILE = f"""\
name = "{NAME}"
[agent]
kind = "only_here:Agent"
[policy]
engines = ["http://127.0.0.1:9"]
[trainer]
device = "cpu"
loss = "only_here:loss"
[trainer.warm_start]
[environments]
swe = "only_here:Environment"
"""
ABSENT = "cannot be imported: ModuleNotFoundError: No module named 'only_here'"


async def command(*words: str) -> tuple[MainspringError | None, str]:
    """In this process, where the module can be imported; what it was refused with, and what it
    printed."""
    ended = await asyncio.to_thread(CliRunner().invoke, app, [*words])
    if isinstance(ended.exception, MainspringError):
        return ended.exception, ended.output
    assert ended.exit_code == 0, ended.output
    return None, ended.output


async def test_every_process_is_asked(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        await BwrapBackend(tmp_path / "sandboxes").probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    here, file, evaluation = (tmp_path / name for name in ("here", "campaign.toml", "eval.toml"))
    here.mkdir()
    (here / "only_here.py").write_text(MODULE)
    file.write_text(FILE)
    monkeypatch.syspath_prepend(str(here))
    addresses = {"DATABASE_URL": stack.database_url, "TEMPORAL_ADDRESS": stack.temporal_address}
    for name, value in addresses.items():
        monkeypatch.setenv(f"MAINSPRING_{name}", value)
    home = ["--home", str(tmp_path / "command")]

    async with AsyncExitStack() as processes, Database.open(stack.database_url) as db:
        client = await connect(load_settings(tmp_path / "command"), db)
        rollout = await processes.enter_async_context(
            worker(tmp_path / "rollout", "rollout", **addresses)
        )
        trainer = await processes.enter_async_context(
            worker(tmp_path / "trainer", "trainer", "--campaign", NAME, **addresses)
        )
        await processes.enter_async_context(
            worker(tmp_path / "node", "sandbox", **addresses, NODE_ID=NODE)
        )

        async def own_name() -> str:
            """As Temporal lists it."""
            polling = await fleet_extensions.pollers(client, db, ROLLOUT_QUEUE, "workflow")
            return next((each for each in polling if each.startswith(f"{rollout.pid}-")), "")

        host = client.identity.partition("@")[2]
        await until(own_name)
        asked = await own_name()
        for queue in (
            worker_queue(asked),
            waiting_trainer_queue(NAME),
            node_queue(nodes.NodeId(NODE)),
        ):
            await until(partial(fleet_extensions.pollers, client, db, queue, "activity"))
        refused, printed = await command("campaign", "start", str(file), *home)
        assert refused is not None and refused.exit_code == 2
        nothing = "cannot start, nothing was stored; missing: extensions"
        assert refused.message == f"campaign {NAME} {nothing}"
        [identity] = re.findall(rf"trainer ({trainer.pid}-\w+@\S+): loss", printed)
        assert identity.endswith(f"@{host}:{trainer_queue(NAME)}")
        missing = re.findall(r"^missing +(extensions: .*)$", printed, re.MULTILINE)
        assert sorted(line.rstrip() for line in missing) == [
            f"extensions: node {NODE}: agent 'only_here:Agent' {ABSENT}",
            f"extensions: node {NODE}: environment 'only_here:Environment' {ABSENT}",
            f"extensions: rollout worker {asked}: agent 'only_here:Agent' {ABSENT}",
            f"extensions: trainer {identity}: loss 'only_here:loss' {ABSENT}",
        ]
        assert await campaigns.find(db, NAME) is None

        evaluation.write_text('[agent]\nkind = "only_here:Agent"\n')
        model = ["--model", "any", "--api", "openai", "--base-url", "http://127.0.0.1:9/v1"]
        tasks = ["--source", "bundled", "--split", "heldout"]
        refused, _ = await command(
            "eval", "run", str(evaluation), *tasks, *model, "--name", NAME, *home
        )
        assert refused is not None and refused.exit_code == 2
        assert refused.message.splitlines()[0].endswith(" cannot start, nothing was stored:")
        assert sorted(line.strip() for line in refused.message.splitlines()[1:]) == [
            f"node {NODE}: agent 'only_here:Agent' {ABSENT}",
            f"rollout worker {asked}: agent 'only_here:Agent' {ABSENT}",
        ]
        assert await campaigns.find(db, NAME) is None

        # What every process can import is accepted; a process that has just ended is no reason.
        known = FILE.partition("[agent]")[0]
        file.write_text(
            f"""{known}
[agent]
kind = "bash"
[environments]
other = "infra.environments.swe:SweEnvironment"
[policy]
engines = ["http://127.0.0.1:9"]
[trainer]
device = "cpu"
loss = "operator:add"
[trainer.warm_start]
"""
        )
        trainer.kill()
        await trainer.wait()
        refused, _ = await command("campaign", "start", str(file), "--dry-run", *home)
        assert refused is None
