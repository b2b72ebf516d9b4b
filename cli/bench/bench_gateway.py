"""`mainspring bench gateway`: what a request of a program costs beyond the engine.

A rollout worker and a gateway as users have them, each a process of its own, on an embedded stack;
the node is in this process, its sandboxes open nothing, and their programs are clients in it. The
engine answers at once, with tokens of the bundled model's tokenizer. Invariants: all calls of all
sessions are answered, or there is no figure; the engine alone is asked in the same run, with as
many tokens.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from temporalio.client import Client

from cli.bench.fakes.asking_sandbox import AskingBackend, SessionLoad
from cli.bench.fakes.at_once_worker import AtOnce
from cli.bench.fakes.no_op_campaign import TASK, put_rollouts
from cli.bench.footprint import Footprint
from cli.operations.machine.embedded_stack import temporary
from cli.operations.machine.fleet import ONE_THREAD, Fleet, Member
from cli.operations.machine.process_ends import ProcessEnd
from infra import gateway_addresses
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import SamplingParams
from infra.sandbox.backends import Backends
from infra.temporal.connection import connect
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.settings import load_settings
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import ROLLOUT_QUEUE, CampaignId, rollout_workflow
from mainspring.protocol.names import WORKFLOW_TASK_TIMEOUT, Workflow
from mainspring.protocol.rollout import RolloutInput
from mainspring.tasks.sandbox_choice import BWRAP
from workers.sandbox import SandboxNode, make_node

Figures = dict[str, Any]
CAMPAIGN = CampaignId("bench")
MAX_CONTEXT = 1_000_000
MAX_SESSIONS = 1000
MAX_CALLS = 2000
EDGE = 20
"""First and last calls of a session that are compared."""
TOTAL_CALLS = 4
"""Times `num_calls`: what many sessions ask together."""
MIN_CALLS = 5
"""Fewest calls of each session."""
LIMIT_S = 900.0
"""Time limit of one load."""
POLL_S = 0.05
ENGINE_CALLS = 50
WARM_UP = (4, 5)
"""Sessions and calls before anything is measured: imports, connections, compiled queries."""
GATEWAY, ROLLOUT_WORKER = MEASURED = ("gateway", "rollout_worker")
WORDS = "the function reads its file and returns a number that the test compares with another "


def read_numbers(option: str, text: str, highest: int) -> list[int]:
    """Ascending, with commas between them. Raises UsageError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    is_ascending = all(a < b for a, b in pairwise(numbers))
    if not numbers or min(numbers) < 1 or max(numbers) > highest or not is_ascending:
        raise UsageError(
            f"{option} {text!r}: expected numbers from 1 to {highest}, ascending, with commas "
            "between them",
            remedy=f"for example {option} 1,32",
        )
    return numbers


async def measure(
    sessions: Sequence[int],
    num_calls: int,
    prompt_tokens: Sequence[int],
    figures: dict[str, Figures],
) -> None:
    """Fill `figures` by number of sessions, with prompts of the first size; and by size with the
    first number of sessions. Raises WorkFailed when a call was not answered."""
    async with _gateway_stack(max(*sessions, WARM_UP[0]), num_calls) as stack:
        await stack.played(*WARM_UP, prompt_tokens[0])
        for number in sessions:
            num_played = min(num_calls, max(MIN_CALLS, TOTAL_CALLS * num_calls // number))
            figures[str(number)] = await stack.played(number, num_played, prompt_tokens[0])
        first = sessions[0]
        by_size = figures[str(first)]["by_prompt_tokens"] = {}
        for size in prompt_tokens:
            by_size[str(size)] = await stack.played(first, num_calls, size)


@dataclass(slots=True)
class _GatewayStack:
    db: Database
    client: Client
    fleet: Fleet
    footprint: Footprint
    backend: AskingBackend
    tokenizer: ChatTokenizer
    _num_groups: int = field(default=0, init=False)

    async def played(self, num_sessions: int, num_calls: int, prompt_tokens: int) -> Figures:
        load = SessionLoad(num_sessions, num_calls, _text(self.tokenizer, prompt_tokens))
        self.backend.load = load
        memory_mib, cpu_s = self.footprint.memory_mib(), self.footprint.cpu_s()
        group, ids = await put_rollouts(self.db, CAMPAIGN, self._num_groups, num_sessions)
        self._num_groups += 1
        handles = [
            await self.client.start_workflow(
                Workflow.ROLLOUT,
                RolloutInput(rollout=rollout, campaign=CAMPAIGN, group=group),
                id=rollout_workflow(rollout),
                task_queue=ROLLOUT_QUEUE,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
            )
            for rollout in ids
        ]
        ends = asyncio.gather(*(handle.result() for handle in handles))
        try:
            await self._until_asked(load, ends)
            grown_mib = _grown(memory_mib, self.footprint.memory_mib())
            used_s = _grown(cpu_s, self.footprint.cpu_s())
            await ends
        finally:
            ends.cancel()
        row = _row(load, await self._engine_s(prompt_tokens))
        num_all = num_sessions * num_calls
        row["cpu_ms_per_call_of"] = {
            name: round(1000 * s / num_all, 2) for name, s in used_s.items()
        }
        row["kib_per_session_of"] = {
            name: round(1024 * grown_mib[name] / num_sessions, 1) for name in MEASURED
        }
        return row

    async def _until_asked(self, load: SessionLoad, ends: "asyncio.Future[Any]") -> None:
        """Raises WorkFailed when a session ended before its last call, or all take too long."""
        until = time.monotonic() + LIMIT_S
        while not load.is_over:
            self.fleet.check()
            if ends.done():
                raise WorkFailed(
                    f"the rollouts ended when {len(load.latencies_s)} of {load.num_sessions} "
                    f"sessions had asked: {ends.result()}",
                    remedy="this is a bug: please report it with the command",
                )
            if time.monotonic() > until:
                raise WorkFailed(
                    f"{load.num_sessions} sessions did not ask {load.num_calls} calls each within "
                    f"{LIMIT_S:.0f} s: {load.num_ready} began, {len(load.latencies_s)} ended",
                    remedy="measure with fewer --calls, or when the machine does less",
                )
            await asyncio.sleep(POLL_S)
        if load.failure is not None:
            raise load.failure

    async def _engine_s(self, prompt_tokens: int) -> float:
        """Median of the engine asked directly."""
        engine = AtOnce(self.tokenizer)
        params = SamplingParams(max_new_tokens=1000, temperature=1.0, stop_token_ids=())
        took_s: list[float] = []
        for _ in range(ENGINE_CALLS):
            started = time.perf_counter()
            await engine.generate(list(range(prompt_tokens)), params)
            took_s.append(time.perf_counter() - started)
        return float(np.median(took_s))


def _grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}


def _row(load: SessionLoad, engine_s: float) -> Figures:
    latencies_s = np.array(load.latencies_s)
    overheads_ms = 1000 * (latencies_s - engine_s)
    edge = min(EDGE, load.num_calls)
    return {
        "overhead_p50_ms": round(float(np.percentile(overheads_ms, 50)), 2),
        "overhead_p99_ms": round(float(np.percentile(overheads_ms, 99)), 2),
        "requests_per_s": round(latencies_s.size / (load.ended - load.began), 2),
        "num_calls": load.num_calls,
        "first_calls_p50_ms": round(float(np.median(overheads_ms[:, :edge])), 2),
        "last_calls_p50_ms": round(float(np.median(overheads_ms[:, -edge:])), 2),
        "engine_p50_ms": round(1000 * engine_s, 3),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _text(tokenizer: ChatTokenizer, num_tokens: int) -> str:
    """Text of about this number of tokens."""
    tokens_per_text = len(tokenizer.encode_plain(WORDS * 100)) / 100
    return WORDS * max(1, round(num_tokens / tokens_per_text))


def _config(num_calls: int) -> CampaignConfig:
    return CampaignConfig(
        name=CAMPAIGN,
        agent=AgentConfig(
            kind="command",
            options={"command": "true"},
            step_limit=num_calls + 1,
            requests_per_minute=1_000_000,
        ),
        policy=PolicyConfig(model="none", max_context=MAX_CONTEXT, max_new_tokens=1000),
    )


@asynccontextmanager
async def _gateway_stack(capacity: int, num_calls: int) -> AsyncIterator[_GatewayStack]:
    """Up, with a gateway that is found. Raises MainspringErrors."""
    async with temporary("mainspring-bench-") as stack:
        # The bench is no proof of what this machine has room for.
        settings = load_settings(stack.home).model_copy(update={"node_min_free_memory_mb": 0})
        model = stack.home / "tokenizer"
        await asyncio.to_thread(_put_tokenizer, model)
        fleet = Fleet(_members(stack.home, model), stack.home / "logs", _refuse_restart)
        backend = AskingBackend()
        async with open_database(settings, PoolRole.ROLLOUT) as db, fleet:
            client = await connect(settings, db)
            await tasks.put_tasks(db, [TASK])
            await campaigns.create(db, _config(max(num_calls, WARM_UP[1])))
            while not gateway_addresses.found(settings):
                fleet.check()
                await asyncio.sleep(POLL_S)
            backends = Backends({BWRAP: backend})
            node = make_node(client, db, settings, backends, 2 * capacity, list)
            async with _polling(node):
                tokenizer = ChatTokenizer(model)
                footprint = Footprint(stack.home, _pids(fleet))
                yield _GatewayStack(db, client, fleet, footprint, backend, tokenizer)


def _pids(fleet: Fleet) -> dict[str, int]:
    pids = {name: member.pid for name, member in fleet.members.items()}
    return {name: pid for name, pid in pids.items() if pid is not None}


def _put_tokenizer(folder: Path) -> None:
    from bundled.model import make_tokenizer

    make_tokenizer().save_pretrained(folder)


@asynccontextmanager
async def _polling(node: SandboxNode) -> AsyncIterator[None]:
    own = asyncio.create_task(node.own.run())
    beat = asyncio.create_task(node.beat.run_forever())
    try:
        yield
    finally:
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
        await node.own.shutdown()
        await own
        await node.held.release_all()


def _members(home: Path, model: Path) -> list[Member]:
    worker = ["worker", "gateway", "--home", str(home)]
    return [
        Member(GATEWAY, worker, environment=dict(ONE_THREAD)),
        Member(
            ROLLOUT_WORKER,
            [str(home), str(model)],
            environment=dict(ONE_THREAD),
            module="cli.bench.fakes.at_once_worker",
        ),
    ]


def _refuse_restart(end: ProcessEnd) -> NoReturn:
    raise WorkFailed(f"while it was measured, {end}")
