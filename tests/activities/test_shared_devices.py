"""A trainer that shares devices with real engines is killed at each point of its turn: no pass of
its ranks meets an engine with weights, and no engine stays without them."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from temporalio.testing import ActivityEnvironment

from activities.training.publishing import PublishingActivities
from infra.db import leases
from infra.db.database import Database
from infra.db.leases import ProcessLease
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from infra.policy.engines.client import EngineClient
from infra.policy.engines.engine_weights import served_label
from infra.policy.serving import ServedCampaigns, serve_over_http
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import PolicyRef
from tests.activities.dying_trainer import POINTS
from tests.infra.db import store_records as records
from tests.infra.policy.engines import serving
from tests.infra.policy.tiny_model import save_tiny_model

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
    async with ProcessLease(db, leases.publishing(CampaignId(CAMPAIGN))).held():
        waiting = asyncio.create_task(publish(db, 0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)
