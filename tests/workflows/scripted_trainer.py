"""A trainer that commits what it is asked for, and campaigns small enough to run many at once.

The fake at the trainer's seam: its activities on its own queue. Plans, steps, versions and groups
are the store's own.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cluster import Cluster
from scripted import SUBMIT, bash
from temporalio.client import WorkflowHandle
from temporalio.worker import Worker

from activities.implements import implements
from cli.operations.runs import campaign_launch as launch
from infra.db.database import Database
from infra.db.tasks import tasks
from infra.db.training import policies, steps
from infra.temporal.faults import Faults
from infra.temporal.heartbeat import heartbeating
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.errors import WorkFailed
from mainspring.ids import (
    ROLLOUT_QUEUE,
    CampaignId,
    GroupId,
    TaskId,
    group_id,
    group_workflow,
    trainer_queue,
)
from mainspring.protocol.activities import (
    CHECK_LOGPROBS,
    PREPARE_POLICY,
    SEND_POLICY,
    TRAIN_STEP,
)
from mainspring.protocol.campaign import (
    CampaignRef,
    CheckInput,
    CheckResult,
    FinishGroupResult,
    GroupInput,
    PolicyRef,
    SendResult,
    StepInput,
    StepResult,
)
from mainspring.protocol.names import Workflow
from mainspring.status import FaultKind, StepStatus, Unverified
from mainspring.tasks.swe_task import SweTask
from tests.waiting import until

FIX = bash("sed -i 's/a - b/a + b/' calc.py")


@dataclass(slots=True)
class Hold:
    """One point of a campaign at which it is held until it is let go."""

    point: str
    """Part of the name of what is held."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def at(self, name: str) -> None:
        if self.point in name:
            self.reached.set()
            await self.released.wait()

    def move(self, point: str) -> None:
        """Let go of what is held, and hold the campaign at another point from now on."""
        released = self.released
        self.point, self.reached, self.released = point, asyncio.Event(), asyncio.Event()
        released.set()


class Untrainable(WorkFailed):
    fault = FaultKind.NON_FINITE_STEP


class ScriptedTrainer:
    def __init__(self, db: Database, hold: Hold) -> None:
        self._db = db
        self._hold = hold
        self.failing: set[int] = set()
        """Steps that fail for good."""
        self.num_attempts = 0
        self.sent: list[int] = []

    @implements(PREPARE_POLICY)
    async def prepare_policy(self, ref: CampaignRef) -> PolicyRef:
        async with heartbeating():
            await self._hold.at("prepare")
            await policies.put_first_policy(self._db, ref.campaign, _path(ref.campaign, 0))
        return PolicyRef(campaign=ref.campaign, version=0)

    @implements(TRAIN_STEP)
    async def train_step(self, ask: StepInput) -> StepResult:
        self.num_attempts += 1
        async with heartbeating():
            done = await steps.get_step(self._db, ask.campaign, ask.step)
            batch = await steps.step_groups(self._db, ask.campaign, ask.step)
            if done is None or done.status is not StepStatus.DONE:
                await self._hold.at(f"train {ask.step}")
                if ask.step in self.failing:
                    raise Untrainable(
                        f"step {ask.step}: the gradient is not a number", remedy="lower trainer.lr"
                    )
                await steps.commit_step(
                    self._db,
                    ask.campaign,
                    ask.step,
                    metrics={"reward_mean": 0.5, "logprob_gap_max": 0.0},
                    policy_path=_path(ask.campaign, ask.step),
                    checkpoint=_path(ask.campaign, ask.step),
                    groups=batch,
                )
        return StepResult(version=ask.step, reward_mean=0.5, logprob_gap_max=0.0, seconds=0.0)

    @implements(SEND_POLICY)
    async def send_policy(self, ref: PolicyRef) -> SendResult:
        async with heartbeating():
            await self._hold.at(f"send {ref.version}")
        self.sent.append(ref.version)
        return SendResult(num_engines=1)

    @implements(CHECK_LOGPROBS)
    async def check_logprobs(self, ask: CheckInput) -> CheckResult:
        await policies.put_gap(self._db, ask.campaign, ask.version, 0.0, 1)
        return CheckResult(logprob_gap_max=0.0, num_tokens=1)


def _path(campaign: CampaignId, version: int) -> str:
    return f"/policies/{campaign}/v{version}"


@asynccontextmanager
async def trainer_of(
    cluster: Cluster, campaign: CampaignId, hold: Hold
) -> AsyncIterator[ScriptedTrainer]:
    trainer = ScriptedTrainer(cluster.db, hold)
    async with Worker(
        cluster.client,
        task_queue=trainer_queue(campaign),
        activities=[
            trainer.prepare_policy,
            trainer.train_step,
            trainer.check_logprobs,
            trainer.send_policy,
        ],
        interceptors=[Faults()],
    ):
        yield trainer


async def small_config(
    cluster: Cluster,
    *,
    num_steps: int = 3,
    groups_per_step: int = 1,
    every_steps: int = 2,
    group_size: int = 2,
    **trainer: object,
) -> CampaignConfig:
    """A campaign with tasks of its own, evaluated before, after every second step and after."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    made = [
        SweTask(
            id=TaskId(f"{name}-{split}-{n}"),
            source=name,
            split=split,
            issue="add subtracts",
            files={"calc.py": "def add(a, b):\n    return a - b\n"},
            tests={"hidden_test.py": "from calc import add\nassert add(2, 3) == 5\n"},
            test_command="python3 hidden_test.py",
        )
        for split, number in (("train", 2), ("heldout", 1))
        for n in range(number)
    ]
    await tasks.put_tasks(cluster.db, made)
    return CampaignConfig(
        name=name,
        tasks=TasksConfig(source=name, unverified=Unverified.USE),
        agent=AgentConfig(step_limit=3, max_format_errors=2),
        policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
        evaluation=EvalSchedule(
            every_steps=every_steps, splits=("heldout",), greedy=False, concurrency=2
        ),
        trainer=TrainerConfig.model_validate(
            {
                "num_steps": num_steps,
                "groups_per_step": groups_per_step,
                "group_size": group_size,
                **trainer,
            }
        ),
    )


def mixed(rollout: str, turn: int) -> str:
    """The first rollout of each group solves its task, the others do nothing."""
    return FIX if rollout.endswith("/000") and turn == 0 else SUBMIT


def hold_policy(cluster: Cluster, holds: dict[str, Hold]) -> None:
    """Hold the replies and published weights of each campaign at its own point."""

    async def hold(name: str) -> None:
        for campaign, each in holds.items():
            if campaign in name:
                await each.at(name)

    cluster.policy.hold = hold


async def until_reached(hold: Hold) -> None:
    await until(hold.reached.is_set)


async def start_first_group(
    cluster: Cluster, config: CampaignConfig
) -> tuple[WorkflowHandle, GroupId]:
    """Of a new campaign, by itself."""
    campaign = await launch.create(cluster.db, config)
    group = group_id(campaign, 0)
    handle = await cluster.client.start_workflow(
        Workflow.GROUP,
        GroupInput(campaign=campaign, index=0, policy_version=0),
        id=group_workflow(group),
        task_queue=ROLLOUT_QUEUE,
        result_type=FinishGroupResult,
    )
    return handle, group
