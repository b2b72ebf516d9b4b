"""A supervised run's workflow on real services: paused, cancelled, failed and started again, it
ends with every step made once, and its history holds counts alone."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from cluster import Cluster
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, Worker

from activities.training.sft_training import SftTrainingActivities
from cli.operations.runs import campaign_control, campaign_launch
from infra.db.runs import campaigns
from infra.db.training import policies, sft, trainers
from infra.temporal.faults import Faults
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId, campaign_workflow, trainer_queue
from mainspring.status import CampaignStatus
from mainspring.trajectories.imitation import to_imitate
from tests.sandboxed import SANDBOXED
from tests.sft_backend import SftTrainer
from tests.waiting import until
from workflows.sft import SftWorkflow

NUM_STEPS = 9
MAX_PAYLOAD_BYTES = 4096


@pytest.fixture
async def run(cluster: Cluster) -> CampaignId:
    config = SftConfig.model_validate(
        {
            "name": f"sft-{uuid.uuid4().hex[:8]}",
            "policy": {"model": "/models/m"},
            "data": {"sources": [{"file": "/rows.jsonl"}]},
            "trainer": {
                "device": "cpu",
                "num_steps": NUM_STEPS,
                "batch_size": 2,
                "checkpoint_every": 4,
            },
        }
    )

    async def samples():
        for n in range(6):
            yield to_imitate(f"rows:{n}", 0, np.arange(9, dtype=np.int32), np.ones(9, np.bool_))

    await sft.create(cluster.db, config, samples(), lambda data: data)
    return CampaignId(config.name)


@asynccontextmanager
async def trainer_of(
    cluster: Cluster, run: CampaignId, home: Path, backend: SftTrainer
) -> AsyncIterator[None]:
    held = await trainers.take(cluster.db, run, owner="t", process="t", ended="t")
    assert held is not None
    activities = SftTrainingActivities(cluster.db, home, backend, held.epoch)
    async with Worker(
        cluster.client,
        task_queue=trainer_queue(run),
        activities=[activities.prepare_policy, activities.sft_steps],
        interceptors=[Faults()],
    ):
        yield


async def status(cluster: Cluster, run: CampaignId) -> CampaignStatus:
    return (await campaigns.get(cluster.db, run)).status


async def versions(cluster: Cluster, run: CampaignId) -> list[int]:
    return [each.version for each in await policies.list_policies(cluster.db, run)]


async def test_paused_and_resumed_it_makes_every_step_once(
    cluster: Cluster, run: CampaignId, tmp_path: Path
) -> None:
    backend = SftTrainer(NUM_STEPS, ends_at=3, held_at=6)
    async with trainer_of(cluster, run, tmp_path, backend):
        handle = await campaign_launch.start(cluster.client, cluster.db, run)
        await until(backend.reached.is_set)
        told = await campaign_control.set_paused(cluster.client, cluster.db, run, True, print)
        assert told == f"campaign {run} is paused"
        backend.let_go.set()

        async def waits() -> bool:
            doing = (await handle.query(SftWorkflow.progress)).doing
            return doing == "paused: waiting for `mainspring campaign resume`"

        await until(waits)
        assert await status(cluster, run) is CampaignStatus.PAUSED
        assert await versions(cluster, run) == [0, 4, 6]
        await campaign_control.set_paused(cluster.client, cluster.db, run, False, print)
        done = await handle.result()
    assert (done["step"], done["num_steps"]) == (NUM_STEPS, NUM_STEPS)
    assert await status(cluster, run) is CampaignStatus.FINISHED
    assert await versions(cluster, run) == [0, 4, 6, 8, 9]
    assert (await sft.progress(cluster.db, run))[0] == NUM_STEPS
    # Step 3 was lost with its rank: what came before it since version 0 is computed again.
    assert [step for step, _ in backend.steps] == [1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    history = await cluster.client.get_workflow_handle(campaign_workflow(run)).fetch_history()
    assert max(event.ByteSize() for event in history.events) < MAX_PAYLOAD_BYTES
    await Replayer(
        workflows=[SftWorkflow],
        workflow_runner=SANDBOXED,
        data_converter=pydantic_data_converter,
    ).replay_workflow(history)


async def test_cancelled_and_failed_it_is_started_again_after_its_newest_version(
    cluster: Cluster, run: CampaignId, tmp_path: Path
) -> None:
    backend = SftTrainer(NUM_STEPS, held_at=6)
    async with trainer_of(cluster, run, tmp_path, backend):
        handle = await campaign_launch.start(cluster.client, cluster.db, run)
        await until(backend.reached.is_set)
        await campaign_control.cancel(cluster.client, cluster.db, run)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert await status(cluster, run) is CampaignStatus.CANCELLED
        backend.held_at, backend.broken_at = 0, 8
        backend.let_go.set()
        handle = await campaign_launch.start(cluster.client, cluster.db, run)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        failed = await campaigns.get(cluster.db, run)
        assert failed.status is CampaignStatus.FAILED
        assert failed.error is not None and "step 8: the gradient is not a number" in failed.error
        assert await versions(cluster, run) == [0, 4]
        backend.broken_at = 0
        await (await campaign_launch.start(cluster.client, cluster.db, run)).result()
    assert await status(cluster, run) is CampaignStatus.FINISHED
    assert await versions(cluster, run) == [0, 4, 8, 9]
    assert len(await sft.losses(cluster.db, run)) == NUM_STEPS
