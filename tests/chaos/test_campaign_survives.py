"""SIGKILL of the rollout worker, the trainer and the engine in the middle of a real campaign.

The processes are the ones `mainspring quickstart` runs, on a smaller campaign. What must hold
afterwards is read from Postgres: contiguous turns, nothing stored twice, every step once.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import func, select
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import Fleet
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.local_campaign import members
from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tables.models import CallRow, ExecutionRow, RolloutRow
from infra.db.training import batches, policies, steps
from infra.stack import ports
from infra.temporal.connection import connect
from mainspring.config.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.policy import PolicyConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.config.settings import load_settings
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.optimizer import OptimizerConfig, OptimizerName, WarmStartConfig
from mainspring.config.training.parallel import Device
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, ExecutionState, GroupKind, GroupStatus, StepStatus
from mainspring.trajectories.samples import samples_of
from reports.collect import collect
from reports.summary import write
from tests.sandboxed import SANDBOXED
from tests.waiting import until
from workflows.campaign import CampaignWorkflow
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow
from workflows.run import RunWorkflow

NUM_STEPS = 3
GROUPS_PER_STEP = 2
GROUP_SIZE = 4
TIMEOUT_S = 900.0


def small_campaign() -> CampaignConfig:
    return CampaignConfig(
        name="chaos",
        tasks=TasksConfig(num_train=16, num_heldout=6, num_heldout_templates=0),
        agent=AgentConfig(step_limit=4, max_format_errors=2, kind="bundled"),
        # A rollout may need a second activity.
        rollout=RolloutConfig(turns_per_activity=3),
        policy=PolicyConfig(
            engines=(f"http://127.0.0.1:{ports.pick()}",), max_context=512, max_new_tokens=48
        ),
        trainer=TrainerConfig(
            device=Device.CPU,
            num_steps=NUM_STEPS,
            groups_per_step=GROUPS_PER_STEP,
            group_size=GROUP_SIZE,
            # A model this small solves nothing: all its groups have equal rewards.
            filter="none",
            optimizer=OptimizerConfig(name=OptimizerName.MUON, lr=1e-3),
            warm_start=WarmStartConfig(copy_steps=5, steps=25),
        ),
        evaluation=EvalSchedule(every_steps=NUM_STEPS, greedy=False),
    )


@pytest.mark.chaos
@pytest.mark.timeout(3 * TIMEOUT_S)
async def test_a_campaign_survives_the_death_of_each_process(
    stack: StackInfo, tmp_path: Path
) -> None:
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings)
        campaign = await launch.create(db, small_campaign())
        handle = await launch.start(client, db, campaign)
        config = (await campaigns.get(db, campaign)).config
        restarted: list[str] = []
        async with Fleet(
            members(settings, config), tmp_path, lambda end: restarted.append(end.name)
        ) as fleet:

            async def steps_done(number: int) -> bool:
                fleet.check()
                record = await campaigns.get(db, campaign)
                assert record.status is not CampaignStatus.FAILED, record.error
                newest = await policies.latest_policy(db, campaign)
                return newest is not None and newest.version >= number

            async def step_is_planned(number: int) -> bool:
                return await steps.get_step(db, campaign, number) is not None

            await until(lambda: steps_done(1), TIMEOUT_S)
            await until(lambda: rollouts_are_running(db, campaign), TIMEOUT_S)
            kill(fleet, "rollout")
            await until(lambda: step_is_planned(2), TIMEOUT_S)
            kill(fleet, "trainer")
            await until(lambda: steps_done(2), TIMEOUT_S)
            await until(lambda: rollouts_are_running(db, campaign), TIMEOUT_S)
            kill(fleet, "engine")
            await asyncio.wait_for(handle.result(), TIMEOUT_S)
        assert set(restarted) == {"rollout", "trainer", "engine"}
        await check_everything_happened_once(db, campaign)
        await check_histories_replay(client, campaign)
        _, summary = write(await collect(db, campaign), tmp_path / "report")
        assert summary.exists()


async def check_everything_happened_once(db: Database, campaign: CampaignId) -> None:
    record = await campaigns.get(db, campaign)
    assert record.status is CampaignStatus.FINISHED
    done = await steps.list_steps(db, campaign)
    assert [(s.step, s.status) for s in done] == [
        (n, StepStatus.DONE) for n in range(1, NUM_STEPS + 1)
    ]
    versions = [policy.version for policy in await policies.list_policies(db, campaign)]
    assert versions == list(range(NUM_STEPS + 1))
    consumed = [
        group
        for group in await groups.list_groups(db, campaign, GroupKind.TRAIN)
        if group.status is GroupStatus.CONSUMED
    ]
    assert len(consumed) == NUM_STEPS * GROUPS_PER_STEP
    batch_groups = [
        g for n in range(1, NUM_STEPS + 1) for g in await steps.step_groups(db, campaign, n)
    ]
    assert len(batch_groups) == len(set(batch_groups)) == len(consumed)
    for group in await batches.load_groups(db, batch_groups):
        for rollout in group.rollouts:
            stored = await rollouts.get(db, rollout.id)
            assert rollout.reward is not None, f"{rollout.id} was masked: {stored.stop_reason}"
            samples_of(rollout.id, rollout.calls)
            assert len(rollout.calls) == stored.num_turns
    async with db.transaction() as connection:
        ours = select(RolloutRow.id).where(RolloutRow.campaign_id == campaign)
        # One life each: no turn was generated or run a second time in another epoch.
        epochs = await connection.scalar(
            select(func.max(CallRow.epoch)).where(CallRow.rollout_id.in_(ours))
        )
        unfinished = await connection.scalar(
            select(func.count()).where(
                ExecutionRow.rollout_id.in_(ours), ExecutionRow.state != ExecutionState.DONE
            )
        )
    assert (epochs, unfinished) == (0, 0)
    leases = await sandboxes.open_leases(db)
    assert not [lease for lease in leases if lease.rollout.startswith(f"{campaign}/")]
    gaps = [policy.logprob_gap_max for policy in await policies.list_policies(db, campaign)]
    assert gaps[0] is not None and gaps[-1] is not None
    assert max(gaps[0], gaps[-1]) < 1e-3


async def check_histories_replay(client: Client, campaign: CampaignId) -> None:
    """One history of each workflow, as the killed and restarted workers wrote it."""
    kinds = (CampaignWorkflow, GroupWorkflow, RunWorkflow, RolloutWorkflow)
    replayer = Replayer(
        workflows=kinds, data_converter=pydantic_data_converter, workflow_runner=SANDBOXED
    )
    seen = set[str]()
    async for listed in client.list_workflows(f'CampaignId = "{campaign}"'):
        if listed.workflow_type not in seen:
            seen.add(listed.workflow_type)
            handle = client.get_workflow_handle(listed.id, run_id=listed.run_id)
            await replayer.replay_workflow(await handle.fetch_history())
    assert len(seen) == len(kinds), seen


async def rollouts_are_running(db: Database, campaign: CampaignId) -> bool:
    async with db.transaction() as connection:
        number = await connection.scalar(
            select(func.count()).where(
                RolloutRow.campaign_id == campaign,
                RolloutRow.started_at.is_not(None),
                RolloutRow.finished_at.is_(None),
            )
        )
    return bool(number)


def kill(fleet: Fleet, name: str) -> None:
    pid = fleet.members[name].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
