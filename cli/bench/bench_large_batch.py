"""`mainspring bench train --large-batch`: a large batch read from Postgres and handed to a rank.

Generated rollouts are stored as rollouts store them, in a stack of its own that is removed; then
they are read, put together and handed out as a step does, to a real rank process of a local Ray
that maps and verifies them and trains nothing. Invariant: this process loads no torch before or
while it is measured, as the trainer's driver does not.
"""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from activities.training.step_batch import StepBatch, step_batch
from cli.bench.fakes.no_op_campaign import TASK, put_rollouts
from cli.operations.machine.embedded_stack import temporary
from infra.db.connect import open_database
from infra.db.database import Database
from infra.db.rollouts import groups, rollouts, turns
from infra.db.runs import campaigns
from infra.db.tasks import tasks
from infra.db.training import batches, policies, steps
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, RolloutId
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.samples import Sample, digest
from mainspring.trajectories.turns import Call, VersionSpan
from trainer.process.actor import PULSE_GROUP, RankActor
from trainer.process.batch_file import batch_file
from trainer.process.ray_cluster import LOCAL, RayCluster

CAMPAIGN = CampaignId("bench-batch")
NUM_SEQUENCES = 512
TOKENS_EACH = 32_768
GROUP_SIZE = 8
"""Rollouts of a group are stored at once, each through a connection of its own."""
CALL_TOKENS = 1024
"""New tokens of a call, prompt and reply: a rollout of 32k tokens has 32 turns."""
REPLY_TOKENS = 256
TEXT_BYTES = 4
"""Bytes of a reply's token, about."""
VOCAB_SIZE = 151_936
LOOK_S = 0.01
"""Between two looks at the clock of the event loop."""


@dataclass(slots=True)
class Pause:
    """How much later than asked the event loop woke up, at worst."""

    max_s: float = 0.0


async def measure(
    say: Callable[[str], None],
    *,
    num_sequences: int = NUM_SEQUENCES,
    tokens_each: int = TOKENS_EACH,
) -> dict[str, float]:
    """read_s: from Postgres to samples; hand_out_s: from samples to a rank that has mapped them;
    max_loop_block_s over both; driver_peak_gib: resident memory of this process at its peak."""
    async with temporary("mainspring-bench-") as stack:
        settings = load_settings(stack.home)
        async with open_database(settings, pool_size=GROUP_SIZE) as db:
            say(f"storing {num_sequences} rollouts of {tokens_each} tokens")
            await store(db, num_sequences, tokens_each)
            say("reading them, and handing them to a rank")
            figures = await read_and_hand_out(db, stack.home)
    return {"num_sequences": num_sequences, "tokens_each": tokens_each, **figures}


async def read_and_hand_out(db: Database, home: Path) -> dict[str, float]:
    """The figures of what `store` stored. Raises AssertionError when the rank sees other samples
    than were read."""
    with _one_rank() as rank:
        async with _watched_loop() as pause:
            began = time.monotonic()
            batch = await _read(db)
            read = time.monotonic()
            await asyncio.to_thread(_hand_out, batch.samples, rank, home)
            ended = time.monotonic()
        seen = await asyncio.to_thread(_digest_seen_by, rank)
    assert seen == batch.digest, "the rank sees other samples than were read"
    return {
        "read_s": round(read - began, 2),
        "hand_out_s": round(ended - read, 2),
        "max_loop_block_s": round(pause.max_s, 3),
        "driver_peak_gib": round(_peak_gib(), 2),
    }


async def store(db: Database, num_sequences: int, tokens_each: int) -> None:
    await tasks.put_tasks(db, [TASK])
    await campaigns.create(db, _config())
    await policies.put_first_policy(db, CAMPAIGN, "/none", "/none")
    num_groups = num_sequences // GROUP_SIZE
    for index in range(num_groups):
        group, ids = await put_rollouts(db, CAMPAIGN, index, GROUP_SIZE)
        async with asyncio.TaskGroup() as storing:
            for number, rollout in enumerate(ids):
                reward = float(number % 2)
                storing.create_task(_store_rollout(db, rollout, tokens_each, reward))
        await groups.finish_group(db, group)
    planned = await steps.plan_step(db, CAMPAIGN, 1, num_groups)
    assert len(planned) == num_groups


async def _store_rollout(db: Database, rollout: RolloutId, num_tokens: int, reward: float) -> None:
    epoch = (await rollouts.claim(db, rollout, "bench")).epoch
    draw = np.random.default_rng(list(rollout.encode()))
    starts = range(0, num_tokens, CALL_TOKENS)
    for number, start in enumerate(starts):
        length = min(CALL_TOKENS, num_tokens - start)
        num_reply = min(REPLY_TOKENS, length)
        ids = tuple(draw.integers(0, VOCAB_SIZE, length).tolist())
        reply = Call(
            number=number,
            parent=number - 1 if number else None,
            prompt_start=start,
            prompt_ids=ids[: length - num_reply],
            completion_ids=ids[length - num_reply :],
            logprobs=tuple((-draw.random(num_reply)).tolist()),
            spans=(VersionSpan(0, 0, num_reply),),
            text="x" * TEXT_BYTES * num_reply,
            finish_reason="stop",
        )
        await turns.put_call(db, rollout, epoch, reply)
    await rollouts.finish(
        db,
        rollout,
        epoch,
        stop_reason=StopReason.SUBMITTED,
        verdict=Verdict.RESOLVED if reward else Verdict.NOT_RESOLVED,
        reward=reward,
        fault=None,
        num_turns=len(starts),
        phase_s={},
    )


async def _read(db: Database) -> StepBatch:
    batch = await batches.load_batch(db, CAMPAIGN, 1)
    return await asyncio.to_thread(step_batch, batch, _config().trainer, version=0)


def _config() -> CampaignConfig:
    return CampaignConfig(name=CAMPAIGN, policy=PolicyConfig(model="none"))


@contextmanager
def _one_rank() -> Iterator[Any]:
    """A rank's process that has started and holds no model."""
    cluster = RayCluster(LOCAL)
    cluster.connect(CAMPAIGN)
    try:
        # Ray's overloads lack this option.
        remote = ray.remote(concurrency_groups={PULSE_GROUP: 1})  # pyright: ignore[reportCallIssue]
        rank = remote(RankActor).options(num_cpus=0).remote(0, 1)
        ray.get(rank.pulse.remote())
        yield rank
    finally:
        cluster.shutdown()


def _hand_out(samples: Sequence[Sample], rank: Any, home: Path) -> None:
    """As `TrainerBackend.train_step` does before the ranks compute."""
    with batch_file(layout.batches(home, CAMPAIGN), samples, step=1, epoch=1) as batch:
        ray.get(rank.open_batch.remote(batch))


def _digest_seen_by(rank: Any) -> str:
    return ray.get(rank.__ray_call__.remote(lambda actor: digest(actor._batch)))


@asynccontextmanager
async def _watched_loop() -> AsyncIterator[Pause]:
    pause = Pause()

    async def look() -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            pause.max_s = max(pause.max_s, time.monotonic() - began_s - LOOK_S)

    looking = asyncio.create_task(look())
    try:
        yield pause
    finally:
        looking.cancel()


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
