"""A small campaign with its own processes, which tests kill: what they wait for and what must hold
afterwards, read from Postgres. Imported by the tests that play it.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import func, select
from temporalio.client import Client

from cli.operations.machine.fleet import Fleet, Member
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.local_campaign import members
from infra.db.database import Database
from infra.db.nodes import sandboxes
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tables.models import CallRow, ExecutionRow, RolloutRow
from infra.db.training import batches, policies, steps
from infra.stack import ports
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.policy import PolicyConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.config.settings import Settings
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.optimizer import OptimizerConfig, OptimizerName, WarmStartConfig
from mainspring.config.training.parallel import Device
from mainspring.ids import CampaignId
from mainspring.status import CampaignStatus, ExecutionState, GroupKind, GroupStatus, StepStatus
from mainspring.trajectories.samples import samples_of
from tests.waiting import until

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


@dataclass(slots=True)
class SmallRun:
    """The campaign while its processes run."""

    db: Database
    campaign: CampaignId
    fleet: Fleet
    restarted: list[str] = field(default_factory=list)
    """Members that ended and were started again, by name."""

    async def step_done(self, number: int) -> None:
        """Waits until the step's version is stored."""

        async def is_done() -> bool:
            self.fleet.check()
            record = await campaigns.get(self.db, self.campaign)
            assert record.status is not CampaignStatus.FAILED, record.error
            newest = await policies.latest_policy(self.db, self.campaign)
            return newest is not None and newest.version >= number

        await until(is_done, TIMEOUT_S)

    async def step_planned(self, number: int) -> None:
        """Waits until the step has its batch."""

        async def is_planned() -> bool:
            return await steps.get_step(self.db, self.campaign, number) is not None

        await until(is_planned, TIMEOUT_S)

    async def rollouts_running(self) -> None:
        """Waits until a rollout has started and not ended."""

        async def are_running() -> bool:
            async with self.db.transaction() as connection:
                number = await connection.scalar(
                    select(func.count()).where(
                        RolloutRow.campaign_id == self.campaign,
                        RolloutRow.started_at.is_not(None),
                        RolloutRow.finished_at.is_(None),
                    )
                )
            return bool(number)

        await until(are_running, TIMEOUT_S)

    def kill(self, name: str) -> None:
        pid = self.fleet.members[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def small_run(
    db: Database,
    client: Client,
    settings: Settings,
    config: CampaignConfig,
    folder: Path,
    change: Callable[[Sequence[Member]], Sequence[Member]] = list,
) -> AsyncIterator[SmallRun]:
    """The processes of `mainspring train`, as `change` gives them. The block ends when the campaign
    has."""
    campaign = await launch.create(db, config)
    handle = await launch.start(client, db, campaign)
    config = (await campaigns.get(db, campaign)).config
    restarted: list[str] = []
    processes = change(members(settings, config))
    async with Fleet(processes, folder, lambda end: restarted.append(end.name)) as fleet:
        yield SmallRun(db, campaign, fleet, restarted)
        await asyncio.wait_for(handle.result(), TIMEOUT_S)


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
