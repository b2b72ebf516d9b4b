"""No dead ends: commands without workers, with services that stand still, by a run's name alone."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select, update
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.contrib.pydantic import pydantic_data_converter
from typer.testing import CliRunner, Result

from bundled.gold import make_gold_tasks
from cli.main import app
from cli.operations.machine import spoken
from cli.operations.machine.embedded_stack import StackInfo, temporary
from cli.operations.machine.supervisor import Supervisor
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.local_campaign import until_left
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tables.models import CampaignRow
from infra.db.tasks import tasks
from infra.temporal.connection import connect
from infra.temporal.seen_waits import look
from mainspring.config.evaluations.verification import VerificationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.settings import Settings, load_settings
from mainspring.config.tasks import TasksConfig
from mainspring.errors import Interrupted, MainspringError
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.protocol.run import RunState
from mainspring.status import CampaignStatus
from mainspring.words.waits import waits
from tests.processes import running, with_children
from tests.waiting import until

SOURCE = "no-worker"


@pytest.fixture(scope="module")
async def idle() -> AsyncIterator[StackInfo]:
    """A stack that no worker polls."""
    async with temporary("mainspring-idle-") as info:
        async with Database.open(info.database_url) as db:
            await tasks.put_tasks(db, make_gold_tasks(1, SOURCE, 2))
        yield info


@pytest.fixture
async def db(idle: StackInfo) -> AsyncIterator[Database]:
    async with Database.open(idle.database_url) as database:
        yield database


async def started(idle: StackInfo, db: Database, name: str) -> tuple[Client, CampaignId]:
    config = VerificationConfig(
        name=name,
        tasks=TasksConfig(source=SOURCE),
        policy=PolicyConfig(model="none"),
        split="train",
    )
    client = await connect(load_settings(idle.home), db)
    campaign = await launch.create(db, config)
    await launch.start(client, db, campaign)
    return client, campaign


async def run(idle: StackInfo | None, *words: str) -> Result:
    where = ["--home", str(idle.home)] if idle else []
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, *where])


def command(idle: StackInfo, log: Path, *words: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "mainspring", *words, "--home", str(idle.home)],
            stdout=out,
            stderr=out,
        )


def refusal(ended: Result) -> MainspringError:
    assert isinstance(ended.exception, MainspringError), ended.output + repr(ended.exception)
    return ended.exception


async def test_a_pause_without_a_worker_is_recorded_and_takes_effect(
    idle: StackInfo, db: Database, tmp_path: Path
) -> None:
    _, campaign = await started(idle, db, "paused")
    for verb, done in (("pause", "paused"), ("resume", "resumed"), ("pause", "paused")):
        ended = await run(idle, "campaign", verb, campaign)
        assert ended.exit_code == 0, ended.output
        assert "the order is recorded, and no rollout worker runs" in ended.output
        assert f"It is {done} when one starts (`mainspring tasks verify --name" in ended.output
    worker = command(idle, tmp_path / "worker.log", "worker", "rollout")
    try:

        async def is_paused() -> bool:
            return (await campaigns.get(db, campaign)).status is CampaignStatus.PAUSED

        await until(is_paused)
        ended = await run(idle, "campaign", "resume", campaign)
        assert f"campaign {campaign} is resumed" in ended.output
        ended = await run(idle, "campaign", "cancel", campaign)
        assert ended.output.endswith("is being cancelled\n"), ended.output

        async def is_cancelled() -> bool:
            return (await campaigns.get(db, campaign)).status is CampaignStatus.CANCELLED

        await until(is_cancelled)
    finally:
        worker.terminate()
        await asyncio.to_thread(worker.wait)


async def test_a_start_tells_what_it_does(idle: StackInfo, db: Database, tmp_path: Path) -> None:
    file = tmp_path / "campaign.toml"
    file.write_text(
        'name = "told"\n[tasks]\nnum_train = 2\nnum_heldout = 2\nnum_heldout_templates = 0\n'
        '[policy]\nmodel = "bundled"\nengines = ["http://127.0.0.1:9"]\n'
        '[trainer]\ndevice = "cpu"\n[trainer.warm_start]\n'
    )
    follow = "follow it: mainspring campaign watch told"
    for words, done in (([str(file)], "is started"), (["--name", "told"], "runs already")):
        ended = await run(idle, "campaign", "start", *words, "--force")
        assert ended.exit_code == 0, ended.output + repr(ended.exception)
        assert f"campaign told {done}; {follow}" in ended.output
    client = await connect(load_settings(idle.home), db)
    await client.get_workflow_handle(campaign_workflow(CampaignId("told"))).terminate()
    # Cancelled, it is judged as a new one.
    await campaigns.set_status(db, CampaignId("told"), CampaignStatus.CANCELLED)
    async with db.transaction() as connection:
        row = CampaignRow.id == "told"
        stored = await connection.scalar(select(CampaignRow.config).where(row))
        assert stored is not None
        gone = stored | {"policy": stored["policy"] | {"model": "/no/such"}}
        await connection.execute(update(CampaignRow).where(row).values(config=gone))
    refused = refusal(await run(idle, "campaign", "start", "--name", "told"))
    assert refused.message.endswith("missing: model")
    await campaigns.set_status(db, CampaignId("told"), CampaignStatus.FINISHED)
    ended = await run(idle, "campaign", "start", "--name", "told")
    assert ended.exit_code == 0
    said = "campaign told has finished: nothing is started; see mainspring campaign show told"
    assert ended.output == f"{said}\n"


async def test_what_was_cancelled_without_a_worker_starts_again(
    idle: StackInfo, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker of the test before may be listed for a minute.
    monkeypatch.setattr(launch, "CANCEL_TIMEOUT_S", 1.0)
    client, campaign = await started(idle, db, "cancelled")
    handle = client.get_workflow_handle(campaign_workflow(campaign))
    first = (await handle.describe()).run_id
    ended = await run(idle, "campaign", "cancel", campaign)
    assert f"campaign {campaign} is being cancelled" in ended.output
    shown = await run(idle, "campaign", "show", campaign, "--json")
    blocked = json.loads(shown.output)["waits"]
    assert blocked[0]["what"].startswith("being cancelled"), blocked
    assert f"`mainspring tasks verify --name {campaign}`" in blocked[0]["remedy"]
    error = refusal(await run(idle, "campaign", "pause", campaign))
    assert "is being cancelled: nothing to pause" in error.message
    said: list[str] = []
    await launch.start(client, db, campaign, said.append)
    assert "replaced" in said[-1]
    described = await handle.describe()
    assert described.run_id != first and described.status is WorkflowExecutionStatus.RUNNING
    before = client.get_workflow_handle(campaign_workflow(campaign), run_id=first)
    assert (await before.describe()).status is WorkflowExecutionStatus.TERMINATED
    # A command that brings workers waits for them, and no longer than the bound.
    await run(idle, "campaign", "cancel", campaign)
    await launch.start(client, db, campaign, said.append, brings_workers=True)
    assert "was cancelled: waiting until it has ended" in said[-2] and "replaced" in said[-1]


async def test_a_workflow_that_an_earlier_version_left_is_told(
    idle: StackInfo, db: Database
) -> None:
    client, campaign = await started(idle, db, "left")
    usual = await Client.connect(
        idle.temporal_address, namespace="default", data_converter=pydantic_data_converter
    )
    workflow = campaign_workflow(campaign)
    state = RunState(campaign=campaign, concurrency=1, summary="")
    old = await usual.start_workflow("run", state, id=workflow, task_queue="rollout")
    said: list[str] = []
    await launch.start(client, db, campaign, said.append)
    [told] = said
    assert f"--namespace default --workflow-id {workflow}" in told
    await old.terminate()
    await launch.start(client, db, campaign, said.append)
    assert len(said) == 1


async def test_a_name_that_is_not_stored_or_of_another_kind(
    idle: StackInfo, db: Database, tmp_path: Path
) -> None:
    _, campaign = await started(idle, db, "other-kind")
    for words in (("eval", "run"), ("eval", "regrade"), ("train",), ("sft",)):
        error = refusal(await run(idle, *words, "--name", campaign))
        assert error.exit_code == 2 and f"{campaign} is stored as a verify run" in error.message
        assert f"`mainspring tasks verify --name {campaign}`" in error.remedy
        error = refusal(await run(idle, *words, "--name", "othr-kind"))
        assert error.exit_code == 2 and "is stored" in error.message
        error = refusal(await run(idle, *words))
        assert error.exit_code == 2 and "need" in error.message, error
    for words in (("train",), ("sft",)):
        nowhere = tmp_path / "nowhere"
        error = refusal(await run(None, *words, "--name", "a", "--home", str(nowhere)))
        assert f"{nowhere} holds no store" in error.message and not nowhere.exists()


async def test_down_names_the_command_that_would_start_the_services_again(
    idle: StackInfo,
) -> None:
    with Supervisor(idle.home, "mine").noted():
        error = refusal(await run(idle, "down"))
    assert f"process {os.getpid()} runs mine" in error.message
    assert "mainspring train --name mine --stop" in error.remedy
    assert (await run(idle, "status")).exit_code == 0


async def test_the_next_command_waits_for_one_that_ends_what_was_cancelled(
    idle: StackInfo, db: Database
) -> None:
    _, campaign = await started(idle, db, "ends")
    settings, said = load_settings(idle.home), list[str]()
    supervisor = Supervisor(idle.home, campaign)
    with supervisor.noted():
        await until_left(settings, campaign, said.append)  # it runs: refused by its lock
        assert not said
        await campaigns.set_status(db, campaign, CampaignStatus.CANCELLED)
        waiting = asyncio.create_task(until_left(settings, campaign, said.append))
        await until(lambda: bool(said))
        assert said == [
            f"process {os.getpid()} ends campaign {campaign}: waiting until it has left"
        ]
    await asyncio.wait_for(waiting, 120)


INTERRUPTED = """
import asyncio, os, signal
from cli.operations.machine.cancelled_by import resumed_by

async def main():
    with resumed_by("mainspring train --name a", print):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.2)
            print("all is removed")

asyncio.run(main())
"""


def test_an_interrupt_is_answered_at_once_and_ends_with_what_resumes(tmp_path: Path) -> None:
    file = tmp_path / "interrupted.py"
    file.write_text(INTERRUPTED)
    ended = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    heard, removed = ended.stdout.splitlines()  # a second, impatient signal cuts nothing off
    assert heard == "interrupted: stopping the processes; finished work is kept"
    assert removed == "all is removed"
    assert Interrupted.__name__ in ended.stderr
    assert "to resume, run `mainspring train --name a`" in ended.stderr


async def test_services_that_take_connections_and_do_not_answer_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spoken, "QUIET_S", 0.1)
    monkeypatch.setattr(spoken, "PROBE_S", 0.5)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = Settings(
            home=tmp_path,
            database_url=f"postgresql://me:secret@{address}/mainspring",
            temporal_address=address,
        )
        work = asyncio.sleep(3.0, "done")
        assert await spoken.spoken(work, lambda: settings, said.append) == "done"
    [told] = said
    assert f"waiting for Postgres at {address}/mainspring, which does not answer" in told
    assert f"waiting for Temporal at {address}, which does not answer" in told
    assert "secret" not in told


COMMANDS = (
    ("campaign", "list"),
    ("campaign", "show", "frozen"),
    ("campaign", "watch", "frozen"),
    ("campaign", "pause", "frozen"),
    ("campaign", "cancel", "frozen"),
    ("rollout", "list", "frozen"),
    ("node", "list"),
    ("tasks", "list"),
    ("status",),
    ("doctor",),
    ("tasks", "verify", "--name", "frozen"),
    ("rollout", "retry", "--campaign", "frozen", "--masked"),
)
OF_THE_STORE = {
    ("campaign", "list"),
    ("rollout", "list", "frozen"),
    ("node", "list"),
    ("tasks", "list"),
}
TOLD_WITHIN_S = 15.0
START_S = 30.0
"""Imports of a dozen commands at once, on loaded cores."""


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("service", ["postgres", "temporal"])
async def test_every_command_tells_that_a_service_stands_still(
    idle: StackInfo, db: Database, service: str, tmp_path: Path
) -> None:
    if await campaigns.find(db, CampaignId("frozen")) is None:
        await started(idle, db, "frozen")
    frozen = _processes_of(idle, service)
    for process in frozen:
        process.suspend()
    running: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], Path]] = {}
    try:
        for number, words in enumerate(COMMANDS):
            if service == "temporal" and words in OF_THE_STORE:
                continue
            log = tmp_path / f"{number}.log"
            running[words] = command(idle, log, *words), log
        begun = time.monotonic()
        silent = dict(running)
        while silent and time.monotonic() - begun < START_S + TOLD_WITHIN_S:
            for words, (_, log) in list(silent.items()):
                if service in log.read_text().lower():
                    del silent[words]
            await asyncio.sleep(0.2)
        assert not silent, {words: log.read_text() for words, (_, log) in silent.items()}
    finally:
        for each, _ in running.values():
            each.kill()
            each.wait()
        for process in frozen:
            process.resume()


def _processes_of(idle: StackInfo, service: str) -> list[psutil.Process]:
    folder = str(idle.home)
    found = running(lambda each: each.name() == service and folder in " ".join(each.cmdline()))
    return with_children(found)


async def test_a_run_that_has_just_ended_waits_for_nothing(idle: StackInfo, db: Database) -> None:
    """Its row was read before it ended, its workflow is looked at afterwards."""
    client, campaign = await started(idle, db, "just-ended")
    before = await campaigns.get(db, campaign)
    await client.get_workflow_handle(campaign_workflow(campaign)).terminate()
    assert [each.what for each in waits(await look(db, client, before, idle.home))] == [
        "its workflow is not running"
    ]
    await campaigns.set_status(db, campaign, CampaignStatus.FINISHED)
    assert waits(await look(db, client, before, idle.home)) == []
