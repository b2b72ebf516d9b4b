"""Workers for all queues in one process: real Temporal, Postgres and bubblewrap."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scripted import ByteText, ScriptedPolicy
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities.campaigns import CampaignActivities
from activities.judging import JudgeActivities
from activities.own_rewards import RewardActivities
from activities.programs.sessions import SessionActivities
from activities.replies.answers import AnswerActivities
from activities.replies.replies import ReplyActivities
from activities.rollouts import RolloutActivities
from activities.runs import RunActivities
from activities.training.publishing import PublishingActivities
from activities.training.sft import SftActivities
from cli.operations.machine.embedded_stack import StackInfo
from infra.db.cache import FactCache
from infra.db.database import Database
from infra.db.nodes import nodes as node_rows
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import policies
from infra.judges.judge import JudgesInUse
from infra.policy.serving import CampaignPolicy, Serve, ServedCampaigns, in_tokens
from infra.sandbox.backends import Backends, available_backends
from infra.sandbox.protocol import BackendUnavailable, SandboxBackend
from infra.temporal.connection import connect
from infra.temporal.faults import Faults
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.agents.prices import PriceConfig
from mainspring.config.any_run import training
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.rollout import RolloutConfig
from mainspring.config.sandbox import SandboxConfig
from mainspring.config.settings import load_settings
from mainspring.ids import (
    JUDGE_QUEUE,
    ROLLOUT_QUEUE,
    CampaignId,
    GroupId,
    NodeId,
    RolloutId,
    TaskId,
    campaign_workflow,
    group_id,
    rollout_id,
    rollout_workflow,
)
from mainspring.protocol.campaign import CampaignState, plan_of
from mainspring.protocol.names import Workflow
from mainspring.protocol.rollout import RolloutInput, RolloutResult
from mainspring.status import GroupKind
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.tasks.swe_task import SweTask
from node import beat as node_beat
from node.held_sandboxes import HeldSandboxes
from node.reaper import Reaper
from tests.waiting import until
from workers.polling import HEARTBEAT_THROTTLE, workflow_runner
from workers.sandbox import SandboxNode, make_node
from workflows.campaign import CampaignWorkflow
from workflows.group import GroupWorkflow
from workflows.rollout import RolloutWorkflow
from workflows.run import RunWorkflow
from workflows.sft import SftWorkflow

NODE = NodeId("test-node")
"""Of the shared cluster."""
BEAT_S = 0.5
"""Five a second took a tenth of the CPU of these tests."""
BUGGY = "def add(a, b):\n    return a - b\n"
TEST = "from calc import add\nassert add(2, 3) == 5\n"


@dataclass(slots=True)
class Cluster:
    client: Client
    db: Database
    policy: ScriptedPolicy
    replies: ReplyActivities
    served: ServedCampaigns
    nodes: Mapping[NodeId, SandboxNode]
    hosts: Mapping[NodeId, "Host"]
    configs: dict[str, CampaignConfig] = field(default_factory=dict)

    @property
    def held(self) -> HeldSandboxes:
        """Of the first node, as are the next two."""
        return next(iter(self.nodes.values())).held

    @property
    def reaper(self) -> Reaper:
        return next(iter(self.nodes.values())).reaper

    @property
    def backends(self) -> Backends:
        return next(iter(self.hosts.values())).backends

    async def make_rollouts(
        self,
        size: int = 1,
        *,
        step_limit: int = 8,
        max_context: int = 100_000,
        rollout_timeout_s: float = 1800.0,
        image: str | None = None,
        workdir: str = "/testbed",
        sandbox: SandboxConfig | None = None,
        policy: PolicyConfig | None = None,
        agent: str = "bash",
        turns_per_activity: int = 1,
        environments: Mapping[str, str] | None = None,
        program: Mapping[str, Any] | None = None,
        tools: tuple[str, ...] = (),
        further: Mapping[str, tuple[str, ...]] | None = None,
        cost_limit: float | None = None,
        prices: Mapping[str, PriceConfig] | None = None,
    ) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        """A campaign of its own with one task (a wrong operator) and one group. `tools`: of the
        task's row; `further`: agents by name, with their tools."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        config = CampaignConfig(
            name=name,
            agent=AgentConfig.model_validate(
                {
                    "step_limit": step_limit,
                    "max_format_errors": 2,
                    "command_timeout_s": 60.0,
                    "rollout_timeout_s": rollout_timeout_s,
                    "cost_limit": cost_limit,
                    **(program or {"kind": agent}),
                }
            ),
            policy=policy
            or PolicyConfig(
                model="scripted", max_context=max_context, max_new_tokens=max_context // 4
            ),
            sandbox=sandbox or SandboxConfig(),
            rollout=RolloutConfig(turns_per_activity=turns_per_activity),
            environments=dict(environments or {}),
            prices=dict(prices or {}),
            agents={
                name: AgentConfig(kind="tools", tools=given)
                for name, given in (further or {}).items()
            },
        )
        task = SweTask(
            id=TaskId(name),
            source="tests",
            split="train",
            issue="add subtracts",
            tools=tools,
            image=image,
            workdir=workdir,
            files={"calc.py": BUGGY},
            tests={"hidden_test.py": TEST},
            test_command="python3 hidden_test.py",
        )
        return await self.store(config, task, size)

    async def store(
        self, config: CampaignConfig, task: AnyTask, size: int = 1
    ) -> tuple[CampaignId, GroupId, list[RolloutId]]:
        """A campaign with one task and one group."""
        await campaigns.create(self.db, config)
        await tasks.put_tasks(self.db, [task])
        campaign = CampaignId(config.name)
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

    async def play(self, **options: Any) -> tuple[RolloutId, RolloutResult]:
        campaign, group, [rollout] = await self.make_rollouts(**options)
        handle = await self.start(rollout, campaign, group)
        return rollout, await handle.result()

    async def open_sandboxes(self) -> list[str]:
        return list(await self._bwrap.list_open())

    async def remove_sandboxes(self) -> None:
        """What another module's tests left open."""
        for sandbox in await self._bwrap.list_open():
            await self._bwrap.remove(sandbox)

    @property
    def _bwrap(self) -> SandboxBackend:
        backend = self.backends[BWRAP]
        assert not isinstance(backend, BackendUnavailable)
        return backend

    async def lose_node(self) -> NodeId:
        """End the node that holds a sandbox, in order: it opens no more, and then stops."""
        [holder] = [name for name, node in self.nodes.items() if node.held.ids()]
        await node_rows.set_draining(self.db, holder, True)
        node = self.nodes[holder]
        await until(lambda: node.admission.refusal() is not None)
        await node.own.shutdown()
        return holder

    async def row(self, rollout: RolloutId) -> rollouts.RolloutRecord:
        return await rollouts.get(self.db, rollout)


@dataclass(frozen=True, slots=True)
class Host:
    """What a node of a test cluster is made from."""

    backends: Backends
    capacity: int
    images: tuple[str, ...] = ()


async def bwrap_or_skip(state_dir: Path) -> Backends:
    backends = await available_backends(state_dir)
    unavailable = backends[BWRAP]
    if isinstance(unavailable, BackendUnavailable):
        pytest.skip(f"no bubblewrap here: {unavailable}")
    return backends


async def two_nodes(new_folder: pytest.TempPathFactory) -> dict[NodeId, Host]:
    """Each with room for one sandbox, and a name that no node before it had: one that was drained
    stays so in the store."""
    folders = [new_folder.mktemp("lost") for _ in range(2)]
    return {NodeId(each.name): Host(await bwrap_or_skip(each), capacity=1) for each in folders}


@asynccontextmanager
async def without_workers(stack: StackInfo) -> AsyncIterator[Cluster]:
    """For tests whose workers are processes of their own: makes rollouts and starts them."""
    async with Database.open(stack.database_url) as db:

        async def serve(db: Database, campaign: CampaignId) -> CampaignPolicy:
            raise NotImplementedError("nothing is played in this process")

        client = await connect(load_settings(stack.home))
        served = ServedCampaigns(db, serve)
        replies = ReplyActivities(db, FactCache(db), served)
        yield Cluster(client, db, ScriptedPolicy(), replies, served, {}, {})


@asynccontextmanager
async def cluster_of(
    stack: StackInfo,
    hosts: Mapping[NodeId, Host],
    serve_with: Serve | None = None,
) -> AsyncIterator[Cluster]:
    """One rollout worker and these nodes (or none), put together as their own processes would.
    `serve_with` in place of the scripted policy."""
    settings = load_settings(stack.home)
    client = await connect(settings)
    policy = ScriptedPolicy()
    async with Database.open(stack.database_url) as db:
        known = FactCache(db)

        async def serve(db: Database, campaign: CampaignId) -> CampaignPolicy:
            config = (await campaigns.get(db, campaign)).config
            return in_tokens(db, campaign, config, policy, ByteText())

        async def node(name: NodeId, host: Host) -> SandboxNode:
            # The machine that runs the tests may be short of memory: that is not what they test.
            here = settings.model_copy(update={"node_id": name, "node_min_free_memory_mb": 0})
            # A client each, as in processes of their own: on one, a queue has one worker.
            own = await connect(settings)
            return make_node(
                own,
                db,
                here,
                host.backends,
                host.capacity,
                lambda: list(host.images),
                serve=serve_with or serve,
            )

        judges = JudgesInUse()
        bookkeeping = RolloutActivities(db, known)
        standing = CampaignActivities(db, known)
        offering = SessionActivities(db, known)
        served = ServedCampaigns(db, serve_with or serve)
        replies = ReplyActivities(db, known, served)
        nodes = {name: await node(name, host) for name, host in hosts.items()}
        rollout_worker = Worker(
            client,
            task_queue=ROLLOUT_QUEUE,
            workflows=[
                RolloutWorkflow,
                GroupWorkflow,
                RunWorkflow,
                CampaignWorkflow,
                SftWorkflow,
            ],
            workflow_runner=workflow_runner(),
            interceptors=[Faults()],
            activities=[
                replies.generate,
                AnswerActivities(db, known, served).answer_call,
                bookkeeping.begin_rollout,
                bookkeeping.new_epoch,
                bookkeeping.finish_rollout,
                PublishingActivities(db, served).publish_policy,
                bookkeeping.create_group,
                bookkeeping.finish_group,
                bookkeeping.set_campaign_status,
                bookkeeping.plan_step,
                offering.offer_session,
                offering.read_session,
                offering.end_session,
                offering.refuse_requests,
                standing.survey_campaign,
                standing.admit_groups,
                standing.read_outcome,
                RunActivities(db).create_run_group,
                RunActivities(db).next_candidates,
                SftActivities(db).survey_sft,
            ],
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        )
        asked = JudgeActivities(db, known, judges)
        judging = Worker(
            client,
            task_queue=JUDGE_QUEUE,
            interceptors=[Faults()],
            activities=[asked.judge, RewardActivities(db, known, asked).score],
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        )
        polling = [rollout_worker, judging, *(each.own for each in nodes.values())]
        running = [asyncio.create_task(worker.run()) for worker in polling]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node_beat, "NODE_BEAT_S", BEAT_S)
            beats = [asyncio.create_task(each.beat.run_forever()) for each in nodes.values()]
            try:
                yield Cluster(client, db, policy, replies, served, nodes, hosts)
            finally:
                for beat in beats:
                    beat.cancel()
                ends = await asyncio.gather(*beats, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
                await asyncio.gather(*(worker.shutdown() for worker in polling))
                await asyncio.gather(*running)
                await judges.close()
                await asyncio.gather(*(each.held.release_all() for each in nodes.values()))
                await asyncio.gather(
                    *(each.environments.services.close() for each in nodes.values())
                )


@asynccontextmanager
async def campaign_running(cluster: Cluster, campaign: CampaignId) -> AsyncIterator[WorkflowHandle]:
    """The campaign's workflow with version 0 made, published and measured."""
    plan = plan_of(training((await campaigns.get(cluster.db, campaign)).config))
    await policies.put_first_policy(cluster.db, campaign, f"/policies/{campaign}/v0")
    yield await cluster.client.start_workflow(
        Workflow.CAMPAIGN,
        CampaignState(campaign=campaign, plan=plan, published_version=0, measured_version=0),
        id=campaign_workflow(campaign),
        task_queue=ROLLOUT_QUEUE,
    )
