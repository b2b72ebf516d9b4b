"""A trainer that shares devices with real engines is killed at each point of its turn: no pass of
its ranks meets an engine with weights, and no engine stays without them."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from temporalio.testing import ActivityEnvironment

from activities.training import shared_devices
from activities.training.held_version import HeldVersion
from activities.training.publishing import PublishingActivities
from activities.training.shared_devices import SharedDevices
from infra.db import leases
from infra.db.database import Database
from infra.db.leases import ProcessLease
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from infra.policy.engines.client import EngineClient
from infra.policy.engines.engine_weights import served_label
from infra.policy.serving import ServedCampaigns, serve_over_http
from infra.temporal.seen_waits import _holding
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import PolicyRef
from mainspring.training.step_metrics import Origin, TrainerJob
from tests.activities.dying_trainer import POINTS, LookingRanks
from tests.infra.db import store_records as records
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model
from tests.waiting import until

CAMPAIGN = records.CAMPAIGN
LATE = ("after commit", "ranks left")
"""Points after which the step is done."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_tiny_model(root / "first", seed=0), save_tiny_model(root / "next", seed=1)


@pytest.fixture(scope="module")
def engines(models: tuple[Path, Path]) -> Iterator[tuple[str, str]]:
    with serving(models[0]) as one, serving(models[0]) as other:
        yield one, other


async def planned(db: Database, engines: tuple[str, str], model: Path) -> None:
    await tasks.put_tasks(db, [records.task(0)])
    config = CampaignConfig.model_validate(
        {
            "name": CAMPAIGN,
            "policy": {"model": str(model), "engines": engines},
            "trainer": {"device": "cpu", "colocate": True, "num_steps": 2},
        }
    )
    await campaigns.create(db, config)
    await policies.put_first_policy(db, CAMPAIGN, str(model), str(model))
    group = await records.add_ready_group(db, 0)
    assert await steps.plan_step(db, CAMPAIGN, 1, 1) == [group]


async def trained(url: str, home: Path, model: Path, point: str) -> int:
    """Exit code of a trainer process."""
    command = [sys.executable, "-m", "tests.activities.dying_trainer"]
    process = await asyncio.create_subprocess_exec(
        *command, url, str(home), CAMPAIGN, str(model), point, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    print(said.decode())
    return process.returncode or 0


async def publish(db: Database, version: int) -> None:
    served = ServedCampaigns(db, serve_over_http)
    activity = PublishingActivities(db, served).publish_policy
    await ActivityEnvironment().run(activity, PolicyRef(campaign=CAMPAIGN, version=version))
    await served.close()


async def check_serves(url: str, version: int) -> None:
    async with EngineClient([url]) as client:
        label = served_label(await client.weights.info(url))
        assert label is not None and label.version == version
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = (await http.post("/generate", json=body)).json()
        assert len(answer["output_ids"]) == 2


@pytest.mark.parametrize("point", POINTS)
async def test_a_trainer_killed_in_its_turn_is_followed_by_the_next_one(
    db: Database,
    store_url: str,
    engines: tuple[str, str],
    models: tuple[Path, Path],
    tmp_path: Path,
    point: str,
) -> None:
    await planned(db, engines, models[0])
    await publish(db, 0)
    assert await trained(store_url, tmp_path, models[1], point) == -signal.SIGKILL
    assert await trained(store_url, tmp_path, models[1], "nowhere") == 0
    newest = await policies.latest_policy(db, CAMPAIGN)
    assert newest is not None and newest.version == 1
    await publish(db, 1)
    for url in engines:
        await check_serves(url, 1)


@pytest.mark.parametrize("point", POINTS)
async def test_engines_of_a_trainer_that_never_comes_back_are_brought_back(
    db: Database,
    store_url: str,
    engines: tuple[str, str],
    models: tuple[Path, Path],
    tmp_path: Path,
    point: str,
) -> None:
    """As when the campaign is cancelled meanwhile, or its batch was dropped."""
    await planned(db, engines, models[0])
    await publish(db, 0)
    assert await trained(store_url, tmp_path, models[1], point) == -signal.SIGKILL
    version = 1 if point in LATE else 0
    await publish(db, version)
    for url in engines:
        await check_serves(url, version)


async def test_no_engine_gets_weights_in_the_ranks_turn(
    db: Database, engines: tuple[str, str], models: tuple[Path, Path]
) -> None:
    await planned(db, engines, models[0])
    for url in engines:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            await http.post("/update_weight_version", json={"new_version": "other"})
    async with ProcessLease(db, leases.publishing(CampaignId(CAMPAIGN))).held():
        waiting = asyncio.create_task(publish(db, 0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)


async def test_an_engine_that_comes_up_in_the_turn_gives_its_memory_too(
    db: Database,
    engines: tuple[str, str],
    models: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a person is told of the turn."""
    monkeypatch.setattr(shared_devices, "LOOK_S", 0.1)
    await planned(db, engines, models[0])
    await publish(db, 0)
    backend = LookingRanks(list(engines), models[1])
    devices = SharedDevices(db, HeldVersion(db, backend), backend, SecretStr(""))
    record = await campaigns.get(db, CAMPAIGN)
    origin = Origin(campaign=CAMPAIGN, uid=record.uid, config_digest=record.config_digest)
    job = TrainerJob(training(record.config), origin, 1)
    notes: list[str] = []
    async with devices.by_ranks(job, notes.append):
        async with httpx.AsyncClient(base_url=engines[0], timeout=60) as http:
            # As one that is started: with weights, and it answers.
            await http.post("/resume_memory_occupation", json={})
            body = {"model_path": str(models[0]), "weight_version": "base"}
            await http.post("/update_weights_from_disk", json=body)
            await http.post("/continue_generation", json={})

            async def is_empty() -> bool:
                return not (await http.get("/server_info")).json()["memory"]["weights_bytes"]

            await until(is_empty, 30)
        [wait] = await _holding(db, record, datetime.now(UTC))
        assert wait.what == "the engines have given their memory to the trainer for step 1"
    assert notes[-1] == "engines give their memory away"
    assert await _holding(db, record, datetime.now(UTC)) == ()
    await publish(db, 0)
    for url in engines:
        await check_serves(url, 0)


async def test_a_campaign_with_devices_of_its_own_has_no_turns(
    db: Database, engines: tuple[str, str], models: tuple[Path, Path]
) -> None:
    await planned(db, engines, models[0])
    await publish(db, 0)
    record = await campaigns.get(db, CAMPAIGN)
    config = training(record.config)
    apart = config.trainer.model_copy(update={"colocate": False})
    config = config.model_copy(update={"trainer": apart})
    origin = Origin(campaign=CAMPAIGN, uid=record.uid, config_digest=record.config_digest)
    backend = LookingRanks([], models[1])
    devices = SharedDevices(db, HeldVersion(db, backend), backend, SecretStr(""))
    for job in (
        TrainerJob(config, origin, 1),
        TrainerJob(training(record.config), origin, 1, last_step=1),  # it has no engines
    ):
        async with devices.by_ranks(job, print):
            for url in engines:
                await check_serves(url, 0)
