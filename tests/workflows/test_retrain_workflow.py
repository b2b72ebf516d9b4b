"""The workflow of a campaign that trains stored batches again, run by its trainer's worker alone:
paused, cancelled, failed and started again, it ends with every step made once."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cluster import Cluster
from sqlalchemy import insert
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, Worker

from activities.rollouts import RolloutActivities
from activities.training.retraining import RetrainActivities
from cli.operations.runs import campaign_control, campaign_launch
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.runs import campaigns, forks
from infra.db.runs.campaign_record import Parent
from infra.db.runs.forks import ForkedVersion
from infra.db.tables.models import GroupRow, StepGroupRow, StepRow
from infra.db.training import policies, steps
from infra.temporal.faults import Faults
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, campaign_workflow, group_id, trainer_queue
from mainspring.protocol.campaign import StepInput, StepResult
from mainspring.status import CampaignStatus, GroupKind, GroupStatus, Sampling, StepStatus
from mainspring.training.training_faults import nothing_to_retrain
from tests.sandboxed import SANDBOXED
from tests.waiting import until
from workflows.retrain import RetrainWorkflow

NUM_STEPS = 4


def config(name: str) -> CampaignConfig:
    raw = {"name": name, "trainer": {"device": "cpu", "warm_start": {}, "num_steps": 9}}
    return CampaignConfig.model_validate(raw)


@pytest.fixture
async def again(cluster: Cluster) -> CampaignId:
    """Stored, with its steps planned on four groups of another campaign."""
    db, of = cluster.db, CampaignId(f"stored-{uuid.uuid4().hex[:8]}")
    await campaigns.create(db, config(of))
    async with db.transaction() as connection:
        for step in range(1, NUM_STEPS + 1):
            key = {"campaign_id": of, "step": step}
            group = {
                "id": group_id(of, step),
                "campaign_id": of,
                "kind": GroupKind.TRAIN,
                "index": step,
                "policy_version": 0,
                "size": 2,
                "status": GroupStatus.CONSUMED,
                "sampling": Sampling.SAMPLED,
                "split": "train",
            }
            done = key | {"status": StepStatus.DONE, "policy_version_before": step - 1}
            await connection.execute(insert(GroupRow).values(group))
            await connection.execute(insert(StepRow).values(done))
            planned = key | {"group_id": group["id"], "position": 0}
            await connection.execute(insert(StepGroupRow).values(planned))
    name = CampaignId(f"{of}-again")
    source = Parent(of, 0, 0, tuple(range(1, NUM_STEPS + 1)))
    first = [ForkedVersion(0, "/v0/hf", "/v0")]
    await policies.put_first_policy(db, of, "/v0/hf", "/v0")
    record = await campaigns.get(db, of)
    await forks.add(db, config(name), str(uuid.uuid4()), record, source, first, ())
    return name


class ScriptedTrainer:
    """Commits each step; holds one, or fails at one, as it is told."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.held_at = self.broken_at = 0
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()
        self.steps: list[int] = []

    @activity.defn(name="train_step")
    async def train_step(self, ask: StepInput) -> StepResult:
        if ask.step == self.held_at:
            self.reached.set()
            while not self.let_go.is_set():
                activity.heartbeat()
                await asyncio.sleep(0.05)
        if ask.step == self.broken_at:
            raise nothing_to_retrain(ask.campaign, ask.step, "its tokens are masked")
        path = f"/again/v{ask.step}"
        await steps.commit_step(
            self._db, ask.campaign, ask.step, metrics={}, policy_path=path, checkpoint=path
        )
        self.steps.append(ask.step)
        return StepResult(version=ask.step, reward_mean=0.0, logprob_gap_max=None, seconds=0.0)


@asynccontextmanager
async def trainer_of(
    cluster: Cluster, run: CampaignId, trainer: ScriptedTrainer
) -> AsyncIterator[None]:
    async with Worker(
        cluster.client,
        task_queue=trainer_queue(run),
        workflows=[RetrainWorkflow],
        workflow_runner=SANDBOXED,
        activities=[
            trainer.train_step,
            RetrainActivities(cluster.db).survey_retrain,
            RolloutActivities(cluster.db, FactCache(cluster.db)).set_campaign_status,
        ],
        interceptors=[Faults()],
    ):
        yield


async def versions(cluster: Cluster, run: CampaignId) -> list[int]:
    return [each.version for each in await policies.list_policies(cluster.db, run)]


async def test_paused_cancelled_and_failed_every_step_is_made_once(
    cluster: Cluster, again: CampaignId
) -> None:
    db, client = cluster.db, cluster.client
    trainer = ScriptedTrainer(db)
    trainer.held_at = 2
    async with trainer_of(cluster, again, trainer):
        handle = await campaign_launch.start(client, db, again)
        await until(trainer.reached.is_set)
        told = await campaign_control.set_paused(client, db, again, True, print)
        assert told == f"campaign {again} is paused"
        trainer.let_go.set()

        async def waits() -> bool:
            doing = (await handle.query(RetrainWorkflow.progress)).doing
            return doing == "paused: waiting for `mainspring campaign resume`"

        await until(waits)
        assert await versions(cluster, again) == [0, 1, 2]
        await campaign_control.cancel(client, db, again)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await campaigns.get(db, again)).status is CampaignStatus.CANCELLED
        trainer.broken_at = 4
        handle = await campaign_launch.start(client, db, again)
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        failed = await campaigns.get(db, again)
        assert failed.status is CampaignStatus.FAILED
        assert failed.error is not None and "step 4: nothing can be trained" in failed.error
        trainer.broken_at = 0
        done = await (await campaign_launch.start(client, db, again)).result()
    assert (done["step"], done["num_steps"]) == (NUM_STEPS, NUM_STEPS)
    assert (await campaigns.get(db, again)).status is CampaignStatus.FINISHED
    assert trainer.steps == [1, 2, 3, 4]
    assert await versions(cluster, again) == [0, 1, 2, 3, 4]
    history = await client.get_workflow_handle(campaign_workflow(again)).fetch_history()
    await Replayer(
        workflows=[RetrainWorkflow],
        workflow_runner=SANDBOXED,
        data_converter=pydantic_data_converter,
    ).replay_workflow(history)


async def test_without_its_trainer_an_order_is_recorded_and_the_wait_is_named(
    cluster: Cluster, again: CampaignId
) -> None:
    handle = await campaign_launch.start(cluster.client, cluster.db, again)
    told = await campaign_control.set_paused(cluster.client, cluster.db, again, True, print)
    of = again.removesuffix("-again")
    assert "no trainer runs" in told
    assert f"`mainspring campaign retrain {of} --as {again}`" in told
    assert f"`mainspring worker trainer --campaign {again}`" in told
    trainer = ScriptedTrainer(cluster.db)
    async with trainer_of(cluster, again, trainer):

        async def is_paused() -> bool:
            return (await campaigns.get(cluster.db, again)).status is CampaignStatus.PAUSED

        await until(is_paused)
        await campaign_control.set_paused(cluster.client, cluster.db, again, False, print)
        await handle.result()
    assert trainer.steps == [1, 2, 3, 4]
