"""The steps of a supervised run, on the trainer's own queue.

Invariants: a step is a function of the run's samples, its seed and its number, so steps that a
crash took with them are computed again from the newest version, on CPU to the last digit; the
figures that were written first stand. A version is on disk under its final name before the store
names it. Every write is fenced by the epoch of the trainer's lease. A run that is paused, or has
worked for long in one attempt, makes a version where it is: nothing is computed twice for it.
"""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from activities.implements import implements
from activities.training.trainer_backend import TrainerBackend
from activities.training.training import HF_DIRECTORY, TrainingActivities
from infra.db.database import Database
from infra.db.runs import campaigns
from infra.db.training import policies, sft, trainers
from infra.temporal.heartbeat import heartbeating
from infra.tracking import spans
from mainspring.config.sft import SftConfig
from mainspring.ids import CampaignId
from mainspring.protocol.activities import SFT_STEPS, STEP_TIMEOUT_S
from mainspring.protocol.sft import SftStepsInput, SftStepsResult
from mainspring.status import CampaignStatus
from mainspring.training.step_metrics import SupervisedMetrics
from mainspring.trajectories.imitation import DataOrder
from mainspring.trajectories.samples import Sample

SAVE_AFTER_S = STEP_TIMEOUT_S / 2
"""An attempt that has worked so long makes a version, whatever is left of it: at its timeout it
would lose everything."""


class SftBackend(TrainerBackend, Protocol):
    def supervised_step(
        self, samples: list[Sample], step: int, num_steps: int
    ) -> SupervisedMetrics:
        """One of `num_steps`, on the weights of the step before."""
        ...


class SftTrainingActivities(TrainingActivities):
    """With what a campaign's trainer does, of which the first version is prepared alike."""

    def __init__(
        self,
        db: Database,
        home: Path,
        backend: SftBackend,
        epoch: int,
        api_key: SecretStr | None = None,
    ) -> None:
        super().__init__(db, home, backend, epoch, api_key)
        self._supervised = backend

    @implements(SFT_STEPS)
    async def sft_steps(self, ask: SftStepsInput) -> SftStepsResult:
        newest = await policies.latest_policy(self._db, ask.campaign)
        assert newest is not None and newest.checkpoint is not None, "no version is prepared"
        if newest.version > ask.version:  # by an attempt that did not hear of its success
            return SftStepsResult(version=newest.version, loss=None)
        began = time.monotonic()
        async with heartbeating("loading the checkpoint") as beat, self.held.in_turn:
            run = await self._run_of(ask.campaign)
            job = await self._job(ask.campaign)
            checkpoint = Path(newest.checkpoint)
            await self.held.run(self._backend.load, job, checkpoint, ask.version)
            step, loss = ask.version, None
            ahead = asyncio.create_task(run.batch(step + 1))
            try:
                while step < ask.last:
                    step += 1
                    samples = await ahead
                    if step < ask.last:
                        ahead = asyncio.create_task(run.batch(step + 1))
                    last = "" if loss is None else f", loss {loss:.4f}"
                    beat.note = f"step {step} of {run.num_steps}{last}"
                    figures = await self._step(run, samples, step)
                    loss = figures["loss"]
                    status = await sft.put_step(
                        self._db,
                        ask.campaign,
                        step,
                        version=ask.version,
                        metrics=figures,
                        trainer_epoch=self._epoch,
                    )
                    is_long = time.monotonic() - began > SAVE_AFTER_S
                    if status is CampaignStatus.PAUSED or is_long:
                        break
            finally:
                ahead.cancel()
            beat.note = f"saving version {step}"
            await trainers.check(self._db, ask.campaign, self._epoch)
            directory = self._directory(ask.campaign, step)
            trained_on = run.digest(ask.version, step)
            with spans.span("save", step=step):
                await self.held.run(self._backend.save, job, directory, step, trained_on)
            await sft.put_version(
                self._db,
                ask.campaign,
                step,
                path=str(directory / HF_DIRECTORY),
                checkpoint=str(directory),
                trainer_epoch=self._epoch,
            )
            await self._prune(ask.campaign, run.config.trainer.keep_checkpoints)
        return SftStepsResult(version=step, loss=loss)

    async def _step(self, run: "_Run", samples: list[Sample], step: int) -> dict[str, float | None]:
        started = time.monotonic()
        with spans.span("compute", step=step, num_samples=len(samples)):
            result = await self.held.run(
                self._supervised.supervised_step, samples, step, run.num_steps
            )
        seconds = time.monotonic() - started
        num_tokens = sum(len(sample.token_ids) for sample in samples)
        return {
            "loss": result.loss,
            "grad_norm": result.grad_norm,
            "lr": run.config.trainer.optimizer.lr * result.lr_scale,
            "num_tokens": sum(sample.num_action_tokens for sample in samples),
            "num_samples": len(samples),
            "epoch": (step * run.order.batch_size) / run.order.num_samples,
            "seconds": seconds,
            "tokens_per_s": num_tokens / seconds,
        }

    async def _run_of(self, campaign: CampaignId) -> "_Run":
        config = (await campaigns.get(self._db, campaign)).config
        assert isinstance(config, SftConfig), f"{campaign} is a {config.kind}"
        return _Run(self._db, campaign, config, await sft.data_of(self._db, campaign))


class _Run:
    """Facts that the steps of a supervised run follow from."""

    def __init__(
        self, db: Database, campaign: CampaignId, config: SftConfig, data: sft.StoredSftData
    ) -> None:
        self._db = db
        self._campaign = campaign
        self._data = data
        self.config = config
        trainer = config.trainer
        self.num_steps = trainer.steps_of(data.num_samples)
        num_epochs = None if trainer.num_steps else trainer.num_epochs or 1
        self.order = DataOrder(config.seed, data.num_samples, trainer.batch_size, num_epochs)

    async def batch(self, step: int) -> list[Sample]:
        return await sft.samples_at(self._db, self._campaign, self.order.batch(step))

    def digest(self, version: int, step: int) -> str:
        """Digest of what the weights of `step` were trained on since `version`."""
        text = f"{self._data.digest} seed {self.config.seed} steps {version + 1} to {step}"
        return hashlib.sha256(text.encode()).hexdigest()
