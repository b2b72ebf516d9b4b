"""Workers for all queues in the test process: real Temporal, Postgres and bubblewrap."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import ByteText, ScriptedPolicy
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities.grading import GradingActivities
from activities.known import Known
from activities.policy import PolicyActivities, Served
from activities.reaper import Reaper
from activities.rollouts import RolloutActivities
from activities.sandbox import SandboxActivities
from infra.db import campaigns, groups, rollouts, tasks
from infra.db.database import Database
from infra.sandbox.protocol import BackendUnavailable
from infra.sandbox.select import Available, available_backends
from infra.stack.stack import StackInfo
from infra.temporal import connect
from mainspring.config import AgentConfig, CampaignConfig, PolicyConfig
from mainspring.ids import (
    ROLLOUT_QUEUE,
    SANDBOX_QUEUE,
    CampaignId,
    GroupId,
    NodeId,
    RolloutId,
    TaskId,
    group_id,
    node_queue,
    rollout_id,
    rollout_workflow,
)
from mainspring.protocol.names import Workflow
from mainspring.protocol.rollout import RolloutInput, RolloutResult
from mainspring.settings import load_settings
from mainspring.status import GroupKind
from mainspring.tasks import BackendName, Task
from tests.sandboxed import SANDBOXED
from workers.polling import HEARTBEAT_THROTTLE
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow

NODE = NodeId("test-node")
BUGGY = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\nassert add(2, 3) == 5\n"


@dataclass(slots=True)
class Cluster:
    client: Client
    db: Database
    policy: ScriptedPolicy
    sandboxes: SandboxActivities
    policy_activities: PolicyActivities
    backends: Available
    reaper: Reaper
    configs: dict[str, CampaignConfig] = field(default_factory=dict)

    async def make_rollouts(
        self, size: int = 1, *, step_limit: int = 8, max_context: int = 100_000
    ) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        """A campaign of its own with one task (a wrong operator) and one group."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        config = CampaignConfig(
            name=name,
            agent=AgentConfig(step_limit=step_limit, max_format_errors=2, command_timeout_s=20.0),
            policy=PolicyConfig(
                model="scripted", max_context=max_context, max_new_tokens=max_context // 4
            ),
        )
        task = Task(
            id=TaskId(name),
            source="tests",
            split="train",
            issue="add subtracts",
            files={"calc.py": BUGGY},
            tests={"hidden_test.py": TEST},
            test_command="python3 hidden_test.py",
        )
        await campaigns.create(self.db, config)
        await tasks.put_tasks(self.db, [task])
        campaign = CampaignId(name)
        group = group_id(campaign, 0)
        ids = [rollout_id(group, n) for n in range(size)]
        await groups.create_group(
            self.db,
            group,
            campaign,
            GroupKind.TRAIN,
            policy_version=0,
            split="train",
            index=0,
            task=task.id,
            rollouts=[groups.NewRollout(r, task.id, n, 1.0) for n, r in enumerate(ids)],
        )
        return campaign, group, ids

    async def start(
        self, rollout: RolloutId, campaign: CampaignId, group: GroupId
    ) -> WorkflowHandle[RolloutWorkflow, RolloutResult]:
        return await self.client.start_workflow(
            Workflow.ROLLOUT,
            RolloutInput(rollout=rollout, campaign=campaign, group=group),
            id=rollout_workflow(rollout),
            task_queue=ROLLOUT_QUEUE,
            result_type=RolloutResult,
        )

    async def play(self, **options: int) -> tuple[RolloutId, RolloutResult]:
        campaign, group, [rollout] = await self.make_rollouts(**options)
        handle = await self.start(rollout, campaign, group)
        return rollout, await handle.result()

    async def open_sandboxes(self) -> list[str]:
        backend = self.backends[BackendName.BWRAP]
        assert not isinstance(backend, BackendUnavailable)
        return list(await backend.list_open())

    async def row(self, rollout: RolloutId) -> rollouts.RolloutRecord:
        return await rollouts.get(self.db, rollout)


@pytest.fixture(scope="module")
async def workers(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    settings = load_settings(stack.home)
    client = await connect(settings)
    backends = await available_backends(tmp_path_factory.mktemp("sandboxes"))
    unavailable = backends[BackendName.BWRAP]
    if isinstance(unavailable, BackendUnavailable):
        pytest.skip(f"no bubblewrap here: {unavailable}")
    policy = ScriptedPolicy()
    async with Database.open(stack.database_url) as db:
        known = Known(db)

        async def serve(db: Database, campaign: CampaignId) -> Served:
            return Served((await campaigns.get(db, campaign)).config, policy, ByteText())

        bookkeeping = RolloutActivities(db, known)
        asking = PolicyActivities(db, known, serve)
        sandboxes = SandboxActivities(db, known, NODE, backends, capacity=16)
        grading = GradingActivities(db, known, NODE, backends, concurrency=2)
        common = {"max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE}
        polling = [
            Worker(
                client,
                task_queue=ROLLOUT_QUEUE,
                workflows=[RolloutWorkflow, GroupWorkflow],
                workflow_runner=SANDBOXED,
                activities=[
                    asking.generate,
                    bookkeeping.begin_rollout,
                    bookkeeping.new_epoch,
                    bookkeeping.finish_rollout,
                    bookkeeping.create_group,
                    bookkeeping.finish_group,
                ],
                **common,
            ),
            Worker(
                client,
                task_queue=SANDBOX_QUEUE,
                activities=[sandboxes.open_sandbox, grading.grade],
                **common,
            ),
            Worker(
                client,
                task_queue=node_queue(NODE),
                activities=[
                    sandboxes.execute,
                    sandboxes.restore_sandbox,
                    sandboxes.collect_patch,
                    sandboxes.close_sandbox,
                ],
                **common,
            ),
        ]
        running = [asyncio.create_task(worker.run()) for worker in polling]
        yield Cluster(
            client,
            db,
            policy,
            sandboxes,
            asking,
            backends,
            Reaper(db, NODE, backends, sandboxes),
        )
        await asyncio.gather(*(worker.shutdown() for worker in polling))
        await asyncio.gather(*running)
        await sandboxes.close_all()


@pytest.fixture
async def cluster(workers: Cluster) -> AsyncIterator[Cluster]:
    """The shared workers with a policy that has said nothing yet."""
    workers.policy.asked.clear()
    workers.policy.gate = None
    yield workers


@pytest.fixture
def side_effects(tmp_path: Path) -> Path:
    return tmp_path / "side-effects"
