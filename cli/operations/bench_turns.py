"""`mainspring bench turns`: what a turn costs beyond model and sandbox.

The real workflow, activities, store and Temporal, with a policy and a sandbox that do nothing and
take no time, so all that is left of a turn is overhead. Each concurrency is run twice in this
process: through Temporal, and as plain asyncio calling the same activities on the same store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from activities.grading import GradingActivities
from activities.replies import ReplyActivities
from activities.rollouts import RolloutActivities
from activities.sandbox import SandboxActivities
from cli.operations.embedded_stack import temporary
from infra.db import campaigns, groups, tasks
from infra.db.cache import Known
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.reading import timings
from infra.environments.hosted import Environments
from infra.policy.protocol import Completion, SamplingParams
from infra.policy.serving import Served, ServedCampaigns, in_tokens
from infra.policy.weight_label import WeightLabel
from infra.sandbox.backends import Backends
from infra.sandbox.protocol import Sandbox, SandboxSpec
from infra.temporal.connection import connect
from infra.temporal.faults import Faults
from mainspring.config.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.environments.protocol import CommandResult
from mainspring.ids import (
    GRADE_QUEUE,
    ROLLOUT_QUEUE,
    SANDBOX_QUEUE,
    CampaignId,
    GroupId,
    NodeId,
    RolloutId,
    SandboxId,
    TaskId,
    group_id,
    node_queue,
    rollout_id,
    rollout_workflow,
)
from mainspring.protocol.names import Workflow
from mainspring.protocol.rollout import (
    BeginInput,
    ExecuteInput,
    GenerateInput,
    OpenInput,
    RolloutInput,
    SandboxInput,
)
from mainspring.sandbox_choice import BWRAP
from mainspring.settings import Settings, load_settings
from mainspring.status import GroupKind
from mainspring.tasks.swe_task import SweTask
from mainspring.trajectories.turns import VersionSpan
from node.capacity import Admission
from node.held_sandboxes import HeldSandboxes
from workers.polling import workflow_runner
from workflows.rollout import RolloutWorkflow

PLAN: Mapping[int, int] = {1: 60, 50: 12, 200: 6}
"""Rollouts at once -> turns each: enough for a median, under a minute together."""
POOL_SIZE = 16
REPLY_TOKENS = 40
PROMPT_TOKENS = 200
NODE = NodeId("bench")
TASK = SweTask(
    id=TaskId("bench"),
    source="bench",
    split="train",
    issue="nothing is wrong",
    files={"a.py": ""},
    test_command="true",
)


def _config(concurrency: int, num_turns: int) -> CampaignConfig:
    """A campaign whose step limit is the bench's number of turns."""
    return CampaignConfig(
        name=f"bench-{concurrency}",
        agent=AgentConfig(step_limit=num_turns),
        policy=PolicyConfig(model="none"),
    )


class NoPolicy:
    """A policy that answers at once, always with a command that is worth nothing."""

    async def generate(
        self, input_ids: list[int], params: SamplingParams, **_: object
    ) -> Completion:
        ids = tuple(range(REPLY_TOKENS))
        return Completion(
            ids, (-0.1,) * REPLY_TOKENS, (VersionSpan(0, 0, REPLY_TOKENS),), "stop", 0
        )

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        return None

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        return False

    async def aclose(self) -> None:
        return None


class NoTokenizer:
    stop_token_ids = (REPLY_TOKENS - 1,)

    def prompt_ids(self, system: str, user: str) -> list[int]:
        return list(range(PROMPT_TOKENS))

    def next_prompt_ids(self, user_text: str, *, closed: bool) -> list[int]:
        return list(range(REPLY_TOKENS))

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        return "THOUGHT: nothing.\n\n```bash\ntrue\n```"


@dataclass(frozen=True, slots=True)
class NoSandbox:
    id: SandboxId

    async def run(self, turn_id: str, command: str, timeout_s: float) -> CommandResult:
        return CommandResult(0, b"ok\n", False, False, 0.0)

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        return None

    async def diff(self) -> bytes:
        return b""

    async def left_out(self) -> str:
        return ""

    async def snapshot(self, after: str, max_bytes: int) -> bytes | None:
        return None

    async def restore(self, snapshot: bytes) -> None:
        return None

    async def ping(self) -> None:
        return None

    async def close(self) -> None:
        return None


class NoBackend:
    name = BWRAP

    async def probe(self) -> None:
        return None

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return NoSandbox(spec.id)

    async def attach(self, spec: SandboxSpec, busy_s: float) -> Sandbox:
        return NoSandbox(spec.id)

    async def rename(self, sandbox: SandboxId, spec: SandboxSpec) -> Sandbox:
        return NoSandbox(spec.id)

    async def list_open(self) -> list[SandboxId]:
        return []

    async def remove(self, sandbox: SandboxId) -> None:
        return None


async def measure() -> dict[str, dict[str, Any]]:
    """By concurrency: turns_per_s, overhead_p50_ms, overhead_p99_ms, and the same of `baseline`.

    Runs on an embedded stack of its own, made for it and removed, so that no worker of a campaign
    takes the bench's work and no campaign disturbs its figures.
    """
    async with temporary("mainspring-bench-") as stack:
        return await _measure(load_settings(stack.home))


async def _measure(settings: Settings) -> dict[str, dict[str, Any]]:
    async with open_database(settings, pool_size=POOL_SIZE) as db:
        client = await connect(settings)
        await tasks.put_tasks(db, [TASK])
        known = Known(db)
        environments = Environments(Backends({BWRAP: NoBackend()}))
        held = HeldSandboxes(db, known, NODE, environments)
        admission = Admission(NODE, max(PLAN), lambda: len(held), settings)

        async def serve(db: Database, campaign: CampaignId) -> Served:
            config = (await campaigns.get(db, campaign)).config
            return in_tokens(db, campaign, config, NoPolicy(), NoTokenizer())

        bench = Bench(
            client,
            db,
            RolloutActivities(db, known),
            ReplyActivities(db, known, ServedCampaigns(db, serve)),
            SandboxActivities(db, known, NODE, held, admission),
            GradingActivities(db, known, NODE, environments),
        )
        figures: dict[str, dict[str, Any]] = {}
        workers = bench.workers()
        polling = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            for concurrency, num_turns in PLAN.items():
                figures[str(concurrency)] = {
                    **await bench.run(0, concurrency, num_turns, bench.by_temporal),
                    "baseline": await bench.run(1, concurrency, num_turns, bench.by_asyncio),
                }
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in workers))
            await asyncio.gather(*polling)
        return figures


@dataclass(frozen=True, slots=True)
class Bench:
    client: Client
    db: Database
    rollouts: RolloutActivities
    replies: ReplyActivities
    sandbox: SandboxActivities
    grading: GradingActivities

    def workers(self) -> list[Worker]:
        rollout = Worker(
            self.client,
            task_queue=ROLLOUT_QUEUE,
            workflows=[RolloutWorkflow],
            workflow_runner=workflow_runner(),
            activities=[
                self.rollouts.begin_rollout,
                self.rollouts.finish_rollout,
                self.replies.generate,
            ],
            interceptors=[Faults()],
            max_concurrent_activities=2 * max(PLAN),
        )
        shared = Worker(
            self.client,
            task_queue=SANDBOX_QUEUE,
            activities=[self.sandbox.open_sandbox],
            interceptors=[Faults()],
            max_concurrent_activities=2 * max(PLAN),
        )
        grade = Worker(
            self.client,
            task_queue=GRADE_QUEUE,
            activities=[self.grading.grade],
            interceptors=[Faults()],
            max_concurrent_activities=2 * max(PLAN),
        )
        own = Worker(
            self.client,
            task_queue=node_queue(NODE),
            activities=[
                self.sandbox.execute,
                self.sandbox.collect_patch,
                self.sandbox.close_sandbox,
            ],
            interceptors=[Faults()],
            max_concurrent_activities=2 * max(PLAN),
        )
        return [rollout, shared, grade, own]

    async def run(
        self,
        index: int,
        concurrency: int,
        num_turns: int,
        play: Callable[[GroupId, RolloutId, int], Awaitable[None]],
    ) -> dict[str, float]:
        """`concurrency` rollouts at once, each `num_turns` long."""
        config = _config(concurrency, num_turns)
        await campaigns.create(self.db, config)
        campaign = CampaignId(config.name)
        group = group_id(campaign, index)
        ids = [rollout_id(group, n) for n in range(concurrency)]
        await groups.create_group(
            self.db,
            group,
            campaign,
            GroupKind.TRAIN,
            policy_version=0,
            split="train",
            index=index,
            task=TASK.id,
            rollouts=[groups.NewRollout(r, TASK.id, n, 1.0) for n, r in enumerate(ids)],
        )
        started = time.monotonic()
        await asyncio.gather(*(play(group, rollout, num_turns) for rollout in ids))
        wall_s = time.monotonic() - started
        overheads_ms = await self._overheads_ms(ids)
        return {
            "turns_per_s": round(concurrency * num_turns / wall_s, 2),
            "overhead_p50_ms": round(float(np.percentile(overheads_ms, 50)), 2),
            "overhead_p99_ms": round(float(np.percentile(overheads_ms, 99)), 2),
        }

    async def _overheads_ms(self, ids: list[RolloutId]) -> list[float]:
        """From one stored reply to the next of the same rollout: a whole turn, all overhead."""
        async with self.db.transaction() as connection:
            return [1000 * each_s for each_s in await timings.between_replies(connection, ids)]

    async def by_temporal(self, group: GroupId, rollout: RolloutId, num_turns: int) -> None:
        campaign = CampaignId(group.split("/")[0])
        await self.client.execute_workflow(
            Workflow.ROLLOUT,
            RolloutInput(rollout=rollout, campaign=campaign, group=group),
            id=rollout_workflow(rollout),
            task_queue=ROLLOUT_QUEUE,
        )

    async def by_asyncio(self, group: GroupId, rollout: RolloutId, num_turns: int) -> None:
        call = ActivityEnvironment().run
        begin = await call(
            self.rollouts.begin_rollout, BeginInput(rollout=rollout, run_id="baseline")
        )
        opened = await call(
            self.sandbox.open_sandbox, OpenInput(rollout=rollout, epoch=begin.epoch, life=0)
        )
        for turn in range(num_turns):
            await call(
                self.replies.generate,
                GenerateInput(rollout=rollout, epoch=begin.epoch, turn=turn, min_policy_version=0),
            )
            await call(
                self.sandbox.execute,
                ExecuteInput(
                    rollout=rollout,
                    epoch=begin.epoch,
                    turn=turn,
                    sandbox=opened.sandbox,
                    timeout_s=60.0,
                ),
            )
        await call(
            self.sandbox.close_sandbox,
            SandboxInput(rollout=rollout, epoch=begin.epoch, sandbox=opened.sandbox),
        )
