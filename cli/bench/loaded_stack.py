"""An embedded stack of its own with real rollout workers and one real node, and their load.

Invariants: the workers are processes of their own, as users have them, and only the policy and,
unless a load wants real ones, the sandbox do nothing; a worker that ends is not started again, as
its memory is what is measured; nothing of it is left, however the block ends. Imported by the
benches of scale and of soak.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from temporalio.client import Client

from cli.bench.fakes.no_op_campaign import COMMAND, TASK, no_op_config, put_rollouts
from cli.bench.footprint import Footprint
from cli.operations.machine.embedded_stack import temporary
from cli.operations.machine.fleet import ONE_THREAD, Fleet, Member
from cli.operations.machine.process_ends import ProcessEnd
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from infra.db.reading import volume
from infra.db.rollouts.call_cache import HistoryReads
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.errors import WorkFailed
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, RolloutId, rollout_workflow
from mainspring.protocol.names import WORKFLOW_TASK_TIMEOUT, Workflow
from mainspring.protocol.rollout import RolloutInput
from mainspring.status import StopReason, Verdict
from workers.rollout import HISTORIES_READ

ROLLOUT_WORKER = "rollout_worker"
NODE = "node"
WORKERS = (ROLLOUT_WORKER, NODE)
CAMPAIGN = CampaignId("bench")
WARM_UP = CampaignId("bench-warm-up")
WARM_UP_S = 120.0
"""Both workers import their programs, connect, and play one rollout."""
WARM_UP_POLL_S = 0.1
STARTS = 64
"""Workflows whose start is asked for at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """Work of each rollout, and the time limit of a number of them."""

    num_turns: int
    turns_per_activity: int
    limit_s: float
    reply_s: float = 0.0
    """Seconds that a reply takes; without it, many of a burst end before others begin."""
    num_workers: int = 1
    """Rollout workers."""
    num_tokens: int = 0
    """Tokens of a rollout at its end; 0: 80 a turn."""
    is_sandboxed: bool = False
    """Commands run in real sandboxes, and patches are graded there."""

    @property
    def verdict(self) -> Verdict:
        """Verdict that each rollout must have."""
        return Verdict.RESOLVED if self.is_sandboxed else Verdict.NO_PATCH


@dataclass(slots=True)
class LoadedStack:
    db: Database
    client: Client
    fleet: Fleet
    footprint: Footprint
    load: Load
    ids: list[RolloutId] = field(default_factory=list)
    """Every rollout that was started."""
    reads: HistoryReads | None = None
    """Reads by the rollout workers, once these have ended."""
    _num_groups: int = 0

    async def start(self, num_rollouts: int) -> None:
        """Store this number of rollouts and start their workflows."""
        await self._start(CAMPAIGN, num_rollouts, self.ids)

    async def ends(self, campaign: CampaignId = CAMPAIGN) -> volume.Ends:
        """Raises WorkFailed when a worker has ended."""
        self.fleet.check()
        async with self.db.transaction() as connection:
            return await volume.ends(
                connection, campaign, StopReason.STEP_LIMIT, self.load.verdict, self.load.num_turns
            )

    async def num_calls(self) -> int:
        async with self.db.transaction() as connection:
            return await volume.num_calls(connection, CAMPAIGN)

    async def most_in_flight(self) -> int:
        async with self.db.transaction() as connection:
            return await volume.most_in_flight(connection, CAMPAIGN)

    async def database_bytes(self) -> int:
        async with self.db.transaction() as connection:
            return await volume.stored_bytes(connection)

    async def faults(self) -> str:
        """Faults for which rollouts were masked; empty: none was."""
        async with self.db.transaction() as connection:
            return "; ".join(await volume.faults(connection, CAMPAIGN, limit=3))

    async def warm_up(self) -> None:
        """Play one rollout of one turn. Raises WorkFailed when it does not end."""
        ids: list[RolloutId] = []
        await self._start(WARM_UP, 1, ids)
        try:
            async with asyncio.timeout(WARM_UP_S):
                while not (await self.ends(WARM_UP)).num_ended:
                    await asyncio.sleep(WARM_UP_POLL_S)
        except TimeoutError:
            raise WorkFailed(
                f"the first rollout did not end within {WARM_UP_S:.0f} s",
                remedy="measure again when the machine does less",
            ) from None

    async def _start(self, campaign: CampaignId, num_rollouts: int, ids: list[RolloutId]) -> None:
        group, rollouts = await put_rollouts(self.db, campaign, self._num_groups, num_rollouts)
        self._num_groups += 1
        slots = asyncio.Semaphore(STARTS)

        async def start(rollout: RolloutId) -> None:
            async with slots:
                await self.client.start_workflow(
                    Workflow.ROLLOUT,
                    RolloutInput(rollout=rollout, campaign=campaign, group=group),
                    id=rollout_workflow(rollout),
                    task_queue=ROLLOUT_QUEUE,
                    task_timeout=WORKFLOW_TASK_TIMEOUT,
                )
            ids.append(rollout)

        async with asyncio.TaskGroup() as starting:
            for rollout in rollouts:
                starting.create_task(start(rollout))


@asynccontextmanager
async def loaded_stack(capacity: int, load: Load) -> AsyncIterator[LoadedStack]:
    """Up, with its workers warm. Raises MainspringErrors."""
    async with temporary("mainspring-bench-") as stack:
        settings = load_settings(stack.home)
        members = _members(stack.home, capacity, load)
        fleet = Fleet(members, stack.home / "logs", _refuse_restart)
        async with open_database(settings, PoolRole.ROLLOUT) as db, fleet:
            client = await connect(settings, db)
            await tasks.put_tasks(db, [TASK])
            for name, num_turns in ((WARM_UP, 1), (CAMPAIGN, load.num_turns)):
                config = no_op_config(name, num_turns, load.turns_per_activity, load.num_tokens)
                await campaigns.create(db, config)
            pids = await _pids(fleet)
            loaded = LoadedStack(db, client, fleet, Footprint(stack.home, pids), load)
            await loaded.warm_up()
            yield loaded
        loaded.reads = _reads(fleet.log(name) for name in pids if name.startswith(ROLLOUT_WORKER))


def _members(home: Path, capacity: int, load: Load) -> list[Member]:
    def member(name: str, *arguments: str) -> Member:
        module = "cli.bench.fakes.scale_worker"
        return Member(name, list(arguments), environment=dict(ONE_THREAD), module=module)

    turn_tokens = load.num_tokens // load.num_turns
    command = COMMAND if load.is_sandboxed else ""
    common = (str(home), str(load.reply_s), str(turn_tokens), command)
    rollouts = [f"{ROLLOUT_WORKER}-{number}" for number in range(2, load.num_workers + 1)]
    return [
        *(member(name, "rollout", *common) for name in (ROLLOUT_WORKER, *rollouts)),
        member(NODE, "sandbox", *common, str(capacity)),
    ]


def _reads(logs: Iterable[Path]) -> HistoryReads:
    """As each worker told it when it ended."""
    reads = HistoryReads()
    for log in logs:
        for line in log.read_text().splitlines():
            if HISTORIES_READ in line:
                counts = json.loads(line)
                reads.num_known += counts["known"]
                reads.num_whole += counts["whole"]
    return reads


async def _pids(fleet: Fleet) -> dict[str, int]:
    while True:
        fleet.check()
        pids = {name: member.pid for name, member in fleet.members.items()}
        running = {name: pid for name, pid in pids.items() if pid is not None}
        if len(running) == len(pids):
            return running
        await asyncio.sleep(WARM_UP_POLL_S)


def _refuse_restart(end: ProcessEnd) -> NoReturn:
    raise WorkFailed(f"while it was measured, {end}")
