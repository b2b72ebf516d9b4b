"""`mainspring bench replies`: what a long reply costs while it is streamed.

The real client, writer of parts and store; the engine is a process that streams random tokens. By
length of the reply: WAL of its parts beside that of its final row, CPU time to read it, and tokens
that a death of the worker would have cost at the worst moment that was looked at. Everything is
linear in the length, so the ratio and the time per token stay as they are.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from activities.replies.partial_replies import PartialReplies, ReplyUnderWay
from cli.bench.fakes.no_op_campaign import TASK, no_op_config, put_rollouts
from cli.operations.machine.embedded_stack import temporary
from infra.db.connect import PoolRole, open_database
from infra.db.database import Database
from infra.db.reading import volume
from infra.db.rollouts import rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.policy.engines.client import EngineClient
from infra.policy.protocol import Completion, Keep, SamplingParams
from infra.tcp import listen
from mainspring.config.settings import load_settings
from mainspring.errors import ServiceError
from mainspring.ids import CampaignId, RolloutId
from mainspring.trajectories.turns import Call, ReplyPart

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PROMPT = list(range(16))
LOOK_S = 0.02
"""Between two looks at what the store has of a reply under way."""
STARTED_S = 30.0
NUM_READS = 5
"""The median of them is told."""


async def measure(
    say: Callable[[str], None], *, repeated: bool = False, lengths: Sequence[int] = LENGTHS
) -> dict[str, dict[str, Any]]:
    """By length: wal_ratio, wal_parts_bytes, wal_final_bytes, num_rows, read_cpu_ms and
    lost_at_kill_tokens. `repeated`: the engine repeats the reply in each event."""
    kind = "repeated" if repeated else "incremental"
    async with (
        temporary("mainspring-bench-") as stack,
        open_database(load_settings(stack.home), PoolRole.ROLLOUT) as db,
        _engine(kind, "paced") as paced,
        _engine(kind) as fast,
    ):
        rollout = await _rollout(db)
        bench = _Bench(db, rollout, PartialReplies(db))
        figures: dict[str, dict[str, Any]] = {}
        async with EngineClient([paced]) as slow_client, EngineClient([fast]) as client:
            # Pages that are touched for the first time cost WAL of their own.
            await bench.store(slow_client, lengths[0])
            for length in lengths:
                say(f"{length} tokens")
                read_s = sorted([await _read_cpu_s(client, length) for _ in range(NUM_READS)])
                figures[str(length)] = {
                    **await bench.store(slow_client, length),
                    "read_cpu_ms": round(1000 * read_s[NUM_READS // 2], 2),
                }
        return figures


@dataclass(slots=True)
class _Bench:
    db: Database
    rollout: RolloutId
    partials: PartialReplies
    num_calls: int = 0

    async def store(self, client: EngineClient, length: int) -> dict[str, Any]:
        """A reply as it is stored while it comes, and at its end."""
        number, self.num_calls = self.num_calls, self.num_calls + 1
        reply = ReplyUnderWay((self.rollout, 0, number))
        stored, lost = 0, 0

        def keep(part: ReplyPart) -> None:
            nonlocal lost
            lost = max(lost, part.end - stored)
            self.partials.keep(reply, part)

        async def look() -> None:
            nonlocal stored
            while True:
                begun = await self.partials.get(self.rollout, 0, number)
                stored = len(begun.completion_ids) if begun else 0
                await asyncio.sleep(LOOK_S)

        start = await self._wal()
        looking = asyncio.create_task(look())
        try:
            done = await _generate(client, length, keep)
        finally:
            looking.cancel()
        self.partials.release(reply)
        while reply.waiting:
            await asyncio.sleep(LOOK_S)
        num_rows = await self._num_rows()
        parts = await self._wal()
        await turns.put_call(self.db, self.rollout, 0, _call(number, done))
        final = await self._wal()
        return {
            "wal_ratio": round((parts - start) / (final - parts), 2),
            "wal_parts_bytes": parts - start,
            "wal_final_bytes": final - parts,
            "num_rows": num_rows,
            "lost_at_kill_tokens": lost,
        }

    async def _wal(self) -> int:
        async with self.db.transaction() as connection:
            return await volume.wal_position(connection)

    async def _num_rows(self) -> int:
        async with self.db.transaction() as connection:
            return await volume.num_reply_parts(connection, self.rollout)


async def _generate(client: EngineClient, length: int, keep: Keep) -> Completion:
    params = SamplingParams(max_new_tokens=length, temperature=1.0)
    return await client.generate(PROMPT, params, request_id="bench", sticky="bench", keep=keep)


async def _read_cpu_s(client: EngineClient, length: int) -> float:
    began = time.process_time()
    await _generate(client, length, lambda part: None)
    return time.process_time() - began


def _call(number: int, done: Completion) -> Call:
    return Call(
        number=number,
        parent=None,
        prompt_start=0,
        prompt_ids=tuple(PROMPT),
        completion_ids=done.output_ids,
        logprobs=done.logprobs,
        spans=done.spans,
        text="",
        finish_reason=done.finish_reason,
    )


async def _rollout(db: Database) -> RolloutId:
    await tasks.put_tasks(db, [TASK])
    campaign = CampaignId("bench")
    await campaigns.create(db, no_op_config(campaign, 1, 1))
    _, [rollout] = await put_rollouts(db, campaign, 0, 1)
    await rollouts.claim(db, rollout, "bench")
    return rollout


@asynccontextmanager
async def _engine(*options: str) -> AsyncIterator[str]:
    """Address of an engine of its own process. Raises ServiceError when it does not start."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    module = "cli.bench.fakes.streaming_engine"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(port), *options
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(trust_env=False) as http:
            until = time.monotonic() + STARTED_S
            while True:
                try:
                    await http.get(url + "/model_info")
                    break
                except httpx.TransportError:
                    if process.returncode is not None or time.monotonic() > until:
                        raise ServiceError(f"the bench's engine at {url} did not start") from None
                    await asyncio.sleep(0.1)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
