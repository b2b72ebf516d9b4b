"""Whatever a campaign needs and does not get is named within a minute, with what to do about it.

Real processes on real queues: first none runs, then each in turn, then they are killed.
"""

import asyncio
import os
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendUnavailable
from infra.temporal.connection import connect
from infra.temporal.seen_waits import look
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.status import CampaignKind
from mainspring.words.waits import Wait, waits
from tests.waiting import until

NAMED_WITHIN_S = 120.0
"""A reply's lost worker is missed after its heartbeat timeout, 50 s, and waited for 15 s more."""
NODE = "named-waits"


@dataclass(slots=True)
class Looking:
    """What the campaign waits for, looked at until something is named."""

    stack: StackInfo
    db: Database
    campaign: CampaignId
    seen: list[Wait]

    async def names(self, what: str, remedy: str) -> None:
        async def named() -> bool:
            client = await connect(load_settings(self.stack.home))
            scene = await look(self.db, client, await campaigns.get(self.db, self.campaign))
            self.seen = waits(scene)
            return any(what in each.what and remedy in each.remedy for each in self.seen)

        try:
            await until(named, NAMED_WITHIN_S)
        except TimeoutError:
            raise AssertionError(f"not named: {what}; but {self.seen}") from None

    async def shown(self) -> str:
        arguments = ["campaign", "show", self.campaign, "--home", str(self.stack.home)]
        ended = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert ended.exit_code == 0, ended.exception
        return " ".join(ended.output.split())


@asynccontextmanager
async def process(stack: StackInfo, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker of its own; killed at the end, if not before."""
    environment = {
        **os.environ,
        "MAINSPRING_NODE_ID": NODE,
        "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
    }
    with (stack.home / "named-waits.log").open("ab") as log:
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mainspring", "worker", *arguments),
            *("--home", str(stack.home)),
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


def config(port: int, kind: CampaignKind) -> AnyRun:
    raw = {
        "name": f"waits-{kind}-{uuid.uuid4().hex[:6]}",
        "tasks": {"num_train": 4, "num_heldout": 4, "num_heldout_templates": 0},
        "policy": {"engines": [f"http://127.0.0.1:{port}"], "model": "none"},
    }
    if kind is CampaignKind.EVAL:
        raw["policy"]["api"] = "openai"
        return EvaluationConfig.model_validate(raw | {"split": "heldout", "slice": "0:2"})
    raw["policy"]["model"] = "bundled"
    return CampaignConfig.model_validate(raw | {"trainer": {"warm_start": {}}})


@pytest.mark.chaos
async def test_each_missing_part_is_named(stack: StackInfo, tmp_path: Path) -> None:
    try:
        await BwrapBackend(tmp_path).probe()
    except BackendUnavailable as error:
        pytest.skip(error.message)
    client = await connect(load_settings(stack.home))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with Database.open(stack.database_url) as db:
        training = await launch.create(db, config(port, CampaignKind.TRAIN))
        measuring = await launch.create(db, config(port, CampaignKind.EVAL))
        train, measure = (Looking(stack, db, each, []) for each in (training, measuring))
        await train.names("is not running", "campaign start")
        for campaign in (training, measuring):
            await launch.start(client, db, campaign)
        await train.names("nothing polls rollout", "mainspring worker rollout")
        await measure.names("nothing polls rollout", "mainspring worker rollout")

        async with process(stack, "rollout") as worker:
            trainer = f"mainspring worker trainer --campaign {training}"
            await train.names(f"nothing polls trainer/{training}", trainer)
            assert trainer in await train.shown()
            await measure.names("no sandbox node: nothing polls sandbox", "worker sandbox")
            async with process(stack, "sandbox") as node:
                await measure.names(f"no engine answers at http://127.0.0.1:{port}", "engine")
                assert f"127.0.0.1:{port}" in await measure.shown()
                node.kill()
                await node.wait()
                worker.kill()
                await worker.wait()
                # Its polls of a moment ago are still on record.
                await measure.names("nothing polls rollout", "mainspring worker rollout")
        async with process(stack, "rollout"), process(stack, "sandbox"):
            for each in (train, measure):
                await client.get_workflow_handle(campaign_workflow(each.campaign)).cancel()
            for each in (train, measure):
                await until(lambda each=each: over(db, each.campaign))
                assert "waiting" not in await each.shown()


async def over(db: Database, campaign: CampaignId) -> bool:
    return (await campaigns.get(db, campaign)).status in campaigns.ENDS
