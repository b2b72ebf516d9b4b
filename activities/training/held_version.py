"""The version of the weights that a trainer's ranks hold, and how they come to hold another.

Invariants: the backend's calls run in one thread, one after the other, also those of an attempt
that lost its heartbeat while its successor starts; what needs several calls in a row holds
`in_turn`. A version without a checkpoint is made again from the newest one before it that has one,
by the steps between and their stored batches; nothing of that is written. Used by the training
activities.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import structlog

from activities.training.batch_reading import read_batch
from activities.training.step_batch import step_batch
from activities.training.trainer_backend import Progress, TrainerBackend
from infra.db.database import Database
from infra.db.training import fingerprints, policies, steps
from mainspring.training.step_metrics import StepMetrics, TrainerJob
from mainspring.training.training_faults import stamp_differs, step_differs
from mainspring.trajectories.samples import content_digest

log = structlog.get_logger()
T = TypeVar("T")
COMPARED = ("loss", "grad_norm")
"""Figures of a step that tell whether it was trained again alike."""


class HeldVersion:
    def __init__(self, db: Database, backend: TrainerBackend) -> None:
        self._db = db
        self._backend = backend
        self.in_turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call the backend in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def holds(self, job: TrainerJob, version: int) -> bool:
        """Whether the ranks run and hold `version`."""
        return await self.run(self._backend.holds, job, version)

    async def hold(self, job: TrainerJob, version: int, show: Progress) -> None:
        """Have the ranks hold `version`; the caller holds `in_turn`. `show`: what is done. Raises
        StampDiffers where a reproducible campaign would get other bits, CheckpointUnusable."""
        campaign = job.campaign
        since = await policies.since_checkpoint(self._db, campaign, version)
        first, *between = since
        assert first.checkpoint is not None
        for position, policy in reversed(list(enumerate(between))):
            if await self.holds(job, policy.version):
                between = between[position + 1 :]
                break
        else:
            show("loading the checkpoint")
            checkpoint = Path(first.checkpoint)
            await self.run(self._backend.load, job, checkpoint, first.version)
        await self._refuse_other_bits(job, version)
        for policy in between:
            show(f"training step {policy.version} again, up to {version}")
            await self._train_again(job, policy.version)

    async def _train_again(self, job: TrainerJob, step: int) -> None:
        groups = await read_batch(self._db, job, step)
        trainer = job.at(step).trainer
        batch = await asyncio.to_thread(step_batch, groups, trainer, version=step - 1)
        measured = await self.run(self._backend.train_step, batch.samples, step)
        stored = await fingerprints.of_version(self._db, job.campaign, step)
        if stored is not None:
            digest = await asyncio.to_thread(content_digest, batch.samples)
            if (digest, measured.gradient) != (stored.batch, stored.gradient):
                raise step_differs(job.campaign, step, is_batch=digest != stored.batch)
        await self._tell_difference(job, step, measured)
        await self.run(self._backend.trained_again, job, step, batch.digest)

    async def _tell_difference(self, job: TrainerJob, step: int, measured: StepMetrics) -> None:
        """Sums on a GPU are not always of the same order: what is lost in the last bits is told,
        and the next step's log-prob gap is measured against what engines served."""
        done = await steps.get_step(self._db, job.campaign, step)
        assert done is not None, f"step {step} of campaign {job.campaign} was never done"
        stored = {name: done.metrics.get(name) for name in COMPARED}
        now = {name: measured.figures[name] for name in COMPARED}
        tell = log.info if now == stored else log.warning
        tell("step trained again", campaign=job.campaign, step=step, before=stored, now=now)

    async def _refuse_other_bits(self, job: TrainerJob, version: int) -> None:
        if job.config.batches is None:
            return
        stamp = await fingerprints.stamp_of(self._db, job.campaign, version)
        differences = [] if stamp is None else stamp.differences(self._backend.ranks.stamp)
        if stamp is not None and differences:
            raise stamp_differs(job.campaign, version, stamp, differences)
