"""A real small trainer under a supervisor: Ray's raylet dies under it, it is killed, a second one
stands beside it. Version 0 is made all the same, and no process of Ray is left behind.
"""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from cli.operations.embedded_stack import StackInfo
from cli.operations.fleet import ONE_THREAD, Fleet, Member
from infra.db import campaigns, policies, trainers
from infra.db.database import Database
from infra.temporal.connection import connect
from mainspring import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.ids import CampaignId, campaign_id
from mainspring.protocol.activities import PREPARE_POLICY
from mainspring.protocol.campaign import CampaignRef, PolicyRef
from mainspring.settings import load_settings
from tests.waiting import until
from workflows import activity_calls

TIMEOUT_S = 600.0
QUEUE = "trainer-survives"


@workflow.defn(name="PrepareOnly")
class PrepareOnly:
    """The first activity of a campaign, called as a campaign calls it."""

    @workflow.run
    async def run(self, campaign: CampaignId) -> PolicyRef:
        return await activity_calls.anywhere(PREPARE_POLICY, CampaignRef(campaign=campaign))


def tiny_campaign(name: str) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {
            "name": name,
            "trainer": {
                "device": "cpu",
                "optimizer": {"name": "muon"},
                "warm_start": {"copy_steps": 60, "copy_batch_size": 8, "steps": 20},
            },
        }
    )


def trainer_member(stack: StackInfo, campaign: CampaignId, name: str) -> Member:
    arguments = ["worker", "trainer", "--home", str(stack.home), "--campaign", campaign]
    return Member(name, arguments, environment=ONE_THREAD)


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_a_trainer_survives_the_end_of_ray_and_its_own(
    stack: StackInfo, tmp_path: Path
) -> None:
    settings = load_settings(stack.home)
    client = await connect(settings)
    campaign = campaign_id("trainer-survives")
    async with Database.open(stack.database_url) as db:
        await campaigns.create(db, tiny_campaign(campaign))
        restarted: list[int] = []
        fleet = Fleet(
            [trainer_member(stack, campaign, "trainer")],
            tmp_path,
            lambda name, code: restarted.append(code),
        )
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[PrepareOnly],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker, fleet:
            handle = await client.start_workflow(
                PrepareOnly.run, campaign, id=f"prepare/{campaign}", task_queue=QUEUE
            )
            # Ray's raylet dies while ranks compute: its calls would wait without end.
            await until(lambda: trains(handle, fleet), TIMEOUT_S)
            first_pid = pid_of(fleet)
            os.kill(ray_process(first_pid, "raylet").pid, signal.SIGKILL)
            await until(lambda: len(restarted) == 1, TIMEOUT_S)
            # The next one continues; killed outright, it leaves Ray to the one after it.
            await until(lambda: trains(handle, fleet), TIMEOUT_S)
            # Ray's own code may meet the dead raylet first: it ends the process without a word.
            named = {
                3: "the trainer ends: Ray's raylet (pid ",
                1: f'"pid": {first_pid}, "reason": "The connection to the plasma store is failed',
            }
            assert named[restarted[0]] in text(fleet, "trainer")
            assert not of_ray(first_pid)
            second_pid = pid_of(fleet)
            assert second_pid != first_pid
            os.kill(second_pid, signal.SIGKILL)
            await until(lambda: third_holds(db, campaign), TIMEOUT_S)
            # One beside it stands aside, and says for whom.
            other = Fleet([trainer_member(stack, campaign, "other")], tmp_path, print)
            async with other:
                await until(lambda: "waits: another trainer" in text(other, "other"), TIMEOUT_S)
                made = await asyncio.wait_for(handle.result(), TIMEOUT_S)
                assert not list(Path("/tmp").glob(f"ms-ray-{other.members['other'].pid}-*"))
            assert made.version == 0
            assert not of_ray(second_pid)
        assert "SIGTERM received" not in text(fleet, "trainer")
        stored = await policies.get_policy(db, campaign, 0)
        assert stored.checkpoint is not None
        kept = layout.trainer_logs(stack.home, campaign)
        assert (kept / "rank0.log").exists()
        released = await trainers.holder(db, campaign)
        assert released is not None and released.released and released.epoch == 3


async def trains(handle: WorkflowHandle, fleet: Fleet) -> bool:
    """Whether the warm start's steps are under way in the process that now lives."""
    fleet.check()
    pending = (await handle.describe()).raw_description.pending_activities
    beats = [str(each.heartbeat_details) for each in pending]
    alive = fleet.members["trainer"].pid
    return any("warm start" in b and "loss" in b for b in beats) and bool(alive and of_ray(alive))


async def third_holds(db: Database, campaign: CampaignId) -> bool:
    held = await trainers.holder(db, campaign)
    return held is not None and held.epoch == 3


def pid_of(fleet: Fleet) -> int:
    pid = fleet.members["trainer"].pid
    assert pid is not None
    return pid


def of_ray(trainer: int) -> list[psutil.Process]:
    """Processes of the cluster that the trainer of this process id started, wherever they hang."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(f"/ms-ray-{trainer}-" in argument for argument in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def ray_process(trainer: int, name: str) -> psutil.Process:
    [found] = [process for process in of_ray(trainer) if process.name() == name]
    return found


def text(fleet: Fleet, name: str) -> str:
    log = fleet.log(name)
    return log.read_text() if log.exists() else ""
