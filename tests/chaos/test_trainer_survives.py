"""A real small trainer under a supervisor: Ray's raylet dies under it, it is killed, a second one
stands beside it or stands by. Version 0 is made all the same, and no process of Ray is left behind.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from temporalio import workflow
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import ONE_THREAD, Fleet, Member
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, trainers
from infra.temporal.connection import connect
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, campaign_id
from mainspring.protocol.activities import PREPARE_POLICY
from mainspring.protocol.campaign import CampaignRef, PolicyRef
from tests.processes import running
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


def trainer_member(
    stack: StackInfo, campaign: CampaignId, name: str, *options: str, waits_for: Path | None = None
) -> Member:
    arguments = ["worker", "trainer", "--home", str(stack.home), "--campaign", campaign, *options]
    return Member(name, arguments, waits_for=waits_for, environment=ONE_THREAD)


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
            lambda end: restarted.append(end.code),
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


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_a_standby_takes_over_with_its_ranks_ready(stack: StackInfo, tmp_path: Path) -> None:
    settings = load_settings(stack.home)
    client = await connect(settings)
    campaign = campaign_id("trainer-standby")
    first_version = layout.policy(stack.home, campaign, 0)
    rank_log = layout.trainer_logs(stack.home, campaign) / "rank0.log"
    async with Database.open(stack.database_url) as db:
        await campaigns.create(db, tiny_campaign(campaign))
        restarted: list[str] = []
        fleet = Fleet(
            [
                trainer_member(stack, campaign, "trainer", "--standby"),
                trainer_member(stack, campaign, "trainer-2", "--standby", waits_for=first_version),
            ],
            tmp_path,
            lambda end: restarted.append(end.name),
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
            await asyncio.wait_for(handle.result(), TIMEOUT_S)
            await until(lambda: "stands by" in text(fleet, "trainer-2"), TIMEOUT_S)
            working, standby = pid_of(fleet), pid_of(fleet, "trainer-2")
            [ahead] = ranks_of(standby)
            # It has touched nothing of the one that works.
            assert writers(rank_log) == ranks_of(working)

            os.kill(working, signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda: writers(rank_log) == [ahead], TIMEOUT_S)
            print(f"ranks again {time.monotonic() - killed:.1f} s after the kill")
            held = await trainers.holder(db, campaign)
            assert held is not None and held.epoch == 2 and f"pid {standby}" in held.owner
            await until(lambda: not of_ray(working) and not folders(working), TIMEOUT_S)

            # The next one stands by in its turn; the end of its Ray ends nothing but itself.
            await until(lambda: "stands by" in text(fleet, "trainer"), TIMEOUT_S)
            assert restarted == ["trainer"]
            second = pid_of(fleet)
            os.kill(ray_process(second, "raylet").pid, signal.SIGKILL)
            await until(lambda: restarted == ["trainer", "trainer"], TIMEOUT_S)
            assert "the trainer ends: Ray's raylet" in text(fleet, "trainer")
            await until(lambda: not of_ray(second) and not folders(second), TIMEOUT_S)
            held = await trainers.holder(db, campaign)
            assert held is not None and held.epoch == 2 and not held.released
            await until(lambda: text(fleet, "trainer").count("stands by") == 2, TIMEOUT_S)
            assert writers(rank_log) == [ahead]
            third = pid_of(fleet)
        for pid in (standby, third):
            await until(lambda pid=pid: not of_ray(pid) and not folders(pid))
        held = await trainers.holder(db, campaign)
        assert held is not None and held.released


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


def pid_of(fleet: Fleet, name: str = "trainer") -> int:
    pid = fleet.members[name].pid
    assert pid is not None
    return pid


def of_ray(trainer: int) -> list[psutil.Process]:
    """Processes of the cluster that the trainer of this process id started, wherever they hang."""
    return running(
        lambda process: any(f"/ms-ray-{trainer}-" in argument for argument in process.cmdline())
    )


def ranks_of(trainer: int) -> list[int]:
    """Their processes, which name nothing but their kind."""
    found = []
    for raylet in of_ray(trainer):
        try:
            children = raylet.children() if raylet.name() == "raylet" else []
            found += [each.pid for each in children if "RankActor" in " ".join(each.cmdline())]
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def writers(log: Path) -> list[int]:
    """Ranks that print into this file now; of a rank that ended the next one renames it."""
    ranks = running(
        lambda process: (
            "RankActor" in " ".join(process.cmdline())
            and any(each.path == str(log) for each in process.open_files())
        )
    )
    return [rank.pid for rank in ranks]


def folders(trainer: int) -> list[Path]:
    return list(Path("/tmp").glob(f"ms-ray-{trainer}-*"))


def ray_process(trainer: int, name: str) -> psutil.Process:
    [found] = [process for process in of_ray(trainer) if process.name() == name]
    return found


def text(fleet: Fleet, name: str) -> str:
    log = fleet.log(name)
    return log.read_text() if log.exists() else ""
