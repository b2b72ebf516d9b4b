"""The stored batches of a campaign, trained again by the command with a trainer alone: the same
settings give the same weights, another loss gives those of a fresh trainer, whatever is killed.

Real processes, real weights. The reward is a number that each reply has by itself, since a model
this small solves nothing.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.training.step_batch import step_batch
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.rollouts import rollouts
from infra.db.runs import campaigns
from infra.db.training import batches, policies, steps, trainers
from infra.policy.model.weight_files import weights_digest
from infra.temporal.connection import connect
from mainspring.algorithms.schedule import Schedule
from mainspring.artifacts import layout
from mainspring.artifacts.layout import HF_DIRECTORY
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import given
from mainspring.config.files.layers import assignments
from mainspring.config.settings import Settings, load_settings
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, StepStatus
from mainspring.training.step_metrics import Origin, TrainerJob
from tests.chaos.small_run import TIMEOUT_S, small_run
from tests.chaos.test_forked import parent
from tests.processes import words
from tests.waiting import until
from trainer.process.backend import RayTrainer
from trainer.process.driver import TrainerDriver

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")},
    "MAINSPRING_NODE_MIN_FREE_MEMORY_MB": "0",
    "PYTHONPATH": os.pathsep.join(sys.path),
}
NUM_STEPS = 4
OTHER_LOSS = "trainer.loss=cispo"


def start(stack: StackInfo, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mainspring", "--home", str(stack.home), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


async def ran(stack: StackInfo, *arguments: str, code: int = 0) -> str:
    """What the command prints; an error of it where it is to fail."""
    command = start(stack, *arguments)
    try:
        printed, said = await asyncio.to_thread(command.communicate)
    finally:
        command.kill()
        command.wait()
    assert command.returncode == code, said
    return printed if code == 0 else said


async def retrained(stack: StackInfo, of: str, name: str, *options: str) -> dict[str, Any]:
    return json.loads(await ran(stack, "campaign", "retrain", of, "--as", name, *options, "--json"))


async def played(
    db: Database, settings: Settings, schedule: Schedule, folder: Path
) -> CampaignConfig:
    """A campaign that is trained to its end, once for all tests."""
    name = CampaignId(f"batches-{schedule.value}")
    if (stored := await campaigns.find(db, name)) is None:
        config = parent().model_copy(update={"name": name, "schedule": schedule})
        client = await connect(settings, db)
        async with small_run(db, client, settings, config, folder) as run:
            await run.step_done(1)
        stored = await campaigns.get(db, name)
    return training(stored.config)


async def digest(db: Database, name: str, version: int = NUM_STEPS) -> str:
    policy = await policies.get_policy(db, CampaignId(name), version)
    return digest_at(Path(policy.path))


def digest_at(model: Path) -> str:
    found = weights_digest(model)
    assert found is not None, f"{model} holds no weights"
    return found


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize("schedule", [Schedule.REPRODUCIBLE, Schedule.FASTEST])
async def test_the_batches_give_the_weights_again(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Schedule
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    settings = load_settings(stack.home)
    async with open_database(settings) as db:
        config = await played(db, settings, schedule, tmp_path / "parent")
        name = config.name
        took_s = spent_s(await campaigns.get(db, CampaignId(name)))
        same = await retrained(stack, name, f"{name}-same")
        assert await digest(db, f"{name}-same") == await digest(db, name)
        again_s = spent_s(await campaigns.get(db, CampaignId(f"{name}-same")))
        print(f"{schedule}: {took_s:.0f} s with rollouts, {again_s:.0f} s without")
        assert not await rollouts.list_rollouts(db, campaign=CampaignId(f"{name}-same"))
        first, *_ = same["steps"]
        assert [each["batch_of_step"] for each in same["steps"]] == [1, 2, 3, 4]
        assert first["num_gap_tokens"] and first["logprob_gap_max"] < 1e-3, "on policy"
        if schedule is Schedule.REPRODUCIBLE:
            assert same["weights_sha256"] == await digest(db, name)
            await _some_batches_in_order(db, stack, name)
        other = await retrained(stack, name, f"{name}-other", "--set", OTHER_LOSS)
        fresh = await asyncio.to_thread(
            _fresh_trainer, config, await _batches(db, config), tmp_path / "fresh"
        )
        assert await digest(db, f"{name}-other") == fresh != await digest(db, name)
        assert other["given"] == {"trainer.loss": "cispo"}
        assert all(each["kl"] > 0 for each in other["steps"][1:]), "it left the samples' policy"
        await _is_told(stack, name, f"{name}-other")


def spent_s(record: campaigns.CampaignRecord) -> float:
    assert record.finished_at is not None
    return (record.finished_at - record.created_at).total_seconds()


async def _some_batches_in_order(db: Database, stack: StackInfo, name: str) -> None:
    """Fewer steps give the version of that step, and another order gives other weights."""
    await retrained(stack, name, f"{name}-two", "--steps", "2")
    assert await digest(db, f"{name}-two", 2) == await digest(db, name, 2)
    turned = await retrained(stack, name, f"{name}-turned", "--order", "2,1")
    assert [each["batch_of_step"] for each in turned["steps"]] == [2, 1]
    assert await digest(db, f"{name}-turned", 2) != await digest(db, name, 2)
    assert await steps.step_groups(db, CampaignId(f"{name}-turned"), 1) == (
        await steps.step_groups(db, CampaignId(name), 2)
    )
    told = await ran(stack, "campaign", "delete", name, "--yes", code=2)
    assert f"trained again by {name}-same, {name}-turned, {name}-two" in told


async def _batches(db: Database, config: CampaignConfig) -> list[list[batches.BatchGroup]]:
    campaign = CampaignId(config.name)
    return [await batches.load_batch(db, campaign, step) for step in range(1, NUM_STEPS + 1)]


def _fresh_trainer(
    config: CampaignConfig, stored: list[list[batches.BatchGroup]], home: Path
) -> str:
    """Digest of the weights of a trainer that has its own first version, and never heard of the
    store."""
    config = given(config, assignments([OTHER_LOSS, "name=fresh", "trainer.gap.mode=warn"]))
    job = TrainerJob(config, Origin(campaign="fresh", uid="u", config_digest="d"), 1)
    backend = RayTrainer(home, TrainerDriver())
    try:
        backend.prepare(job, layout.policy(home, job.campaign, 0), lambda note: None)
        for step, groups in enumerate(stored, 1):
            batch = step_batch(groups, config.trainer, version=step - 1)
            backend.train_step(batch.samples, step)
            backend.save(job, layout.policy(home, job.campaign, step), step, batch.digest)
    finally:
        backend.ranks.shutdown()
    return digest_at(layout.policy(home, job.campaign, NUM_STEPS) / HF_DIRECTORY)


async def _is_told(stack: StackInfo, of: str, name: str) -> None:
    shown = await ran(stack, "campaign", "show", name)
    assert f"retrained from {of}: version 0 and the batches of its steps 1 to 4" in shown
    assert 'given      trainer.loss = "cispo"' in shown
    for command in ("show", "report"):
        document = json.loads(await ran(stack, "campaign", command, name, "--json"))
        assert document["retrained_from"] == of
    rows = json.loads(await ran(stack, "campaign", "list", "--json"))
    assert {row["name"]: row["retrained_from"] for row in rows}[name] == of


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_whatever_is_killed_no_step_is_trained_twice(
    stack: StackInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_NODE_MIN_FREE_MEMORY_MB", "0")
    settings, name = load_settings(stack.home), CampaignId("killed-again")
    async with open_database(settings) as db:
        of = (await played(db, settings, Schedule.REPRODUCIBLE, tmp_path / "parent")).name
        done: dict[int, str] = {}

        async def files_are_made() -> bool:
            return layout.policies(settings.home, name).exists()

        async def is_stored() -> bool:
            return await campaigns.find(db, name) is not None

        async def trains() -> bool:
            return await trainers.holder(db, name) is not None

        def has(step: int) -> Callable[[], Awaitable[bool]]:
            async def is_done() -> bool:
                found = await steps.get_step(db, name, step)
                return found is not None and found.status is StepStatus.DONE

            return is_done

        for moment in (files_are_made, is_stored, trains, has(1)):
            command = start(stack, "campaign", "retrain", of, "--as", name)
            await until(moment, TIMEOUT_S)
            command.send_signal(signal.SIGKILL)
            command.communicate()
            await _stands(db, name, done)
        command = start(stack, "campaign", "retrain", of, "--as", name, "--json")
        await until(lambda: _is_up(db, name), TIMEOUT_S)
        kill_trainer(command)
        printed, said = await asyncio.to_thread(command.communicate)
        assert command.returncode == 0, said
        await _stands(db, name, done)
        assert sorted(done) == [0, 1, 2, 3, 4]
        assert json.loads(printed)["weights_sha256"] == await digest(db, of)
        record = await campaigns.get(db, name)
        assert record.status is CampaignStatus.FINISHED


async def _stands(db: Database, name: CampaignId, done: dict[int, str]) -> None:
    """Every version that was there before is the same one: its step was not trained again."""
    if await campaigns.find(db, name) is not None:
        for policy in await policies.list_policies(db, name):
            assert done.setdefault(policy.version, policy.uid) == policy.uid


async def _is_up(db: Database, name: CampaignId) -> bool:
    """A trainer has just taken the lease."""
    holder = await trainers.holder(db, name)
    return holder is not None and not holder.released and holder.held_s < 5.0


def kill_trainer(command: subprocess.Popen[str]) -> None:
    children = psutil.Process(command.pid).children()
    [trainer] = [each for each in children if "worker trainer" in " ".join(words(each))]
    trainer.kill()
