"""`mainspring bench turns`: what a turn costs beyond model and sandbox.

The real workflow, activities, store and Temporal, with a policy and a sandbox that do nothing and
take no time, so all that is left of a turn is overhead. Each concurrency is run in this process
through Temporal and as plain asyncio calling the same activities on the same store; each of these
with rollouts of two lengths, whose difference tells a turn's cost from that of a rollout's begin
and end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import psutil
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from activities.grading import GradingActivities
from activities.playing import PlayingActivities
from activities.replies.replies import ReplyActivities
from activities.rollouts import RolloutActivities
from activities.sandbox import SandboxActivities
from cli.bench.fakes.no_op import NoBackend, serve_nothing
from cli.bench.fakes.no_op_campaign import TASK, no_op_config, put_rollouts
from cli.operations.machine.embedded_stack import temporary
from infra.db.cache import FactCache
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.reading import timings
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.environments.hosted import Environments
from infra.policy.serving import ServedCampaigns
from infra.sandbox.backends import Backends
from infra.temporal.connection import connect
from infra.temporal.faults import Faults
from mainspring.config.settings import Settings, load_settings
from mainspring.ids import (
    GRADE_QUEUE,
    ROLLOUT_QUEUE,
    SANDBOX_QUEUE,
    CampaignId,
    GroupId,
    NodeId,
    RolloutId,
    SandboxId,
    node_queue,
    rollout_workflow,
)
from mainspring.protocol.names import Workflow
from mainspring.protocol.rollout import (
    BeginInput,
    BeginResult,
    ExecuteInput,
    GenerateInput,
    OpenInput,
    PlayInput,
    RolloutInput,
    SandboxInput,
)
from mainspring.tasks.sandbox_choice import BWRAP
from mainspring.trajectories.tally import Tally, TurnLimits
from node.capacity import Admission
from node.held_sandboxes import HeldSandboxes
from workers.polling import workflow_runner
from workflows.rollout import RolloutWorkflow

PLAN: Mapping[int, tuple[int, int]] = {1: (10, 60), 50: (5, 15), 200: (5, 10)}
"""Rollouts at once -> turns of the short and of the long ones: enough for a median, about two
minutes together."""
ATTEMPT_S = 600.0
"""Time limit of the activities that plain asyncio calls."""
POOL_SIZE = 16
NODE = NodeId("bench")


def _cpu_s() -> float:
    """CPU time of this process and its servers. On a busy machine it tells more than time does."""
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (this, *this.children(recursive=True)))


async def measure(turns_per_activity: int = 1) -> dict[str, dict[str, Any]]:
    """By concurrency: turns_per_s, overhead_p50_ms and overhead_p99_ms of the longer rollouts,
    ms_per_turn and ms_per_rollout as the two lengths tell them apart, the same in CPU time of all
    processes (cpu_ms_...), and all of it of `baseline`.

    Runs on an embedded stack of its own, made for it and removed, so that no worker of a campaign
    takes the bench's work and no campaign disturbs its figures.
    """
    async with temporary("mainspring-bench-") as stack:
        return await _measure(load_settings(stack.home), turns_per_activity)


async def _measure(settings: Settings, turns_per_activity: int) -> dict[str, dict[str, Any]]:
    async with open_database(settings, pool_size=POOL_SIZE) as db:
        client = await connect(settings)
        await tasks.put_tasks(db, [TASK])
        facts = FactCache(db)
        environments = Environments(Backends({BWRAP: NoBackend()}))
        sandboxes_held = HeldSandboxes(db, facts, NODE, environments)
        admission = Admission(NODE, max(PLAN), lambda: len(sandboxes_held), settings)
        replies = ReplyActivities(db, facts, ServedCampaigns(db, serve_nothing))
        sandboxes = SandboxActivities(db, facts, NODE, sandboxes_held, admission)
        bench = Bench(
            client,
            db,
            RolloutActivities(db, facts),
            replies,
            sandboxes,
            PlayingActivities(facts, NODE, sandboxes_held, replies, sandboxes),
            GradingActivities(db, facts, NODE, environments),
            turns_per_activity,
        )
        figures: dict[str, dict[str, Any]] = {}
        workers = bench.workers()
        polling = [asyncio.create_task(worker.run()) for worker in workers]
        try:
            for concurrency, lengths in PLAN.items():
                figures[str(concurrency)] = {
                    "turns_per_activity": turns_per_activity,
                    **await bench.compare(0, concurrency, lengths, bench.by_temporal),
                    "baseline": await bench.compare(1, concurrency, lengths, bench.by_asyncio),
                }
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in workers))
            await asyncio.gather(*polling)
        return figures


Play = Callable[[GroupId, RolloutId, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Bench:
    client: Client
    db: Database
    rollouts: RolloutActivities
    replies: ReplyActivities
    sandbox: SandboxActivities
    playing: PlayingActivities
    grading: GradingActivities
    turns_per_activity: int

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
                self.playing.play_turns,
                self.sandbox.collect_patch,
                self.sandbox.close_sandbox,
            ],
            interceptors=[Faults()],
            max_concurrent_activities=2 * max(PLAN),
        )
        return [rollout, shared, grade, own]

    async def compare(
        self, index: int, concurrency: int, lengths: tuple[int, int], play: Play
    ) -> dict[str, float]:
        """`concurrency` rollouts at once, short ones and then long ones."""
        short, long = lengths
        short_s, short_cpu_s, _ = await self._run(index, concurrency, short, play)
        long_s, long_cpu_s, overheads_ms = await self._run(index, concurrency, long, play)

        def apart(name: str, of_short_s: float, of_long_s: float) -> dict[str, float]:
            per_turn = (of_long_s - of_short_s) / (concurrency * (long - short))
            per_rollout = of_short_s / concurrency - short * per_turn
            return {
                f"{name}_per_turn": round(1000 * per_turn, 2),
                f"{name}_per_rollout": round(1000 * per_rollout, 2),
            }

        return {
            "turns_per_s": round(concurrency * long / long_s, 2),
            "overhead_p50_ms": round(float(np.percentile(overheads_ms, 50)), 2),
            "overhead_p99_ms": round(float(np.percentile(overheads_ms, 99)), 2),
            "num_turns": long,
            **apart("ms", short_s, long_s),
            **apart("cpu_ms", short_cpu_s, long_cpu_s),
        }

    async def _run(
        self, index: int, concurrency: int, num_turns: int, play: Play
    ) -> tuple[float, float, list[float]]:
        """Seconds for all, CPU seconds of all processes, and milliseconds from each reply to the
        next one."""
        name = f"bench-{concurrency}-{num_turns}"
        config = no_op_config(name, num_turns, self.turns_per_activity)
        await campaigns.create(self.db, config)
        group, ids = await put_rollouts(self.db, CampaignId(config.name), index, concurrency)
        started, cpu_s = time.monotonic(), _cpu_s()
        await asyncio.gather(*(play(group, rollout, num_turns) for rollout in ids))
        spent = time.monotonic() - started, _cpu_s() - cpu_s
        return *spent, await self._overheads_ms(ids)

    async def _overheads_ms(self, ids: Sequence[RolloutId]) -> list[float]:
        """From one stored reply to the next of the same rollout: a whole turn, all overhead."""
        async with self.db.transaction() as connection:
            between = await timings.between_replies(connection, ids)
            return [1000 * each_s for _, each_s in between]

    async def by_temporal(self, group: GroupId, rollout: RolloutId, num_turns: int) -> None:
        campaign = CampaignId(group.split("/")[0])
        await self.client.execute_workflow(
            Workflow.ROLLOUT,
            RolloutInput(rollout=rollout, campaign=campaign, group=group),
            id=rollout_workflow(rollout),
            task_queue=ROLLOUT_QUEUE,
        )

    async def by_asyncio(self, group: GroupId, rollout: RolloutId, num_turns: int) -> None:
        environment = ActivityEnvironment()
        attempt = timedelta(seconds=ATTEMPT_S)
        environment.info = replace(environment.info, start_to_close_timeout=attempt)
        call = environment.run
        begin = await call(
            self.rollouts.begin_rollout, BeginInput(rollout=rollout, run_id="baseline")
        )
        opened = await call(
            self.sandbox.open_sandbox, OpenInput(rollout=rollout, epoch=begin.epoch, life=0)
        )
        turns = self._together if self.turns_per_activity > 1 else self._one_by_one
        await turns(call, begin, rollout, opened.sandbox)
        await call(
            self.sandbox.close_sandbox,
            SandboxInput(rollout=rollout, epoch=begin.epoch, sandbox=opened.sandbox),
        )

    async def _one_by_one(
        self, call: Any, begin: BeginResult, rollout: RolloutId, sandbox: SandboxId
    ) -> None:
        for turn in range(begin.step_limit):
            await call(
                self.replies.generate,
                GenerateInput(rollout=rollout, epoch=begin.epoch, turn=turn, min_policy_version=0),
            )
            await call(
                self.sandbox.execute,
                ExecuteInput(
                    rollout=rollout, epoch=begin.epoch, turn=turn, sandbox=sandbox, timeout_s=60.0
                ),
            )

    async def _together(
        self, call: Any, begin: BeginResult, rollout: RolloutId, sandbox: SandboxId
    ) -> None:
        tally = Tally(
            limits=TurnLimits(
                step_limit=begin.step_limit,
                max_format_errors=begin.max_format_errors,
                rollout_timeout_s=begin.rollout_timeout_s,
            )
        )
        while tally.stop is None:
            played = await call(
                self.playing.play_turns,
                PlayInput(
                    rollout=rollout,
                    epoch=begin.epoch,
                    sandbox=sandbox,
                    tally=tally,
                    num_turns=self.turns_per_activity,
                    min_policy_version=0,
                    request_timeout_s=60.0,
                    command_timeout_s=60.0,
                ),
            )
            tally = played.tally
