"""Training on the trainer's own queue: the first policy, one step, the log-prob check.

Invariant 8: the batch is read from the plan in Postgres; checkpoint and weights are on disk under
their final name before `commit_step` makes them visible together with the consumed groups; after a
crash anywhere the same step runs again from the version before it
(`activities.training.held_version`). A checkpoint that is written in the background becomes visible
later, whole; until then its version is one with weights alone. A batch of which masks left nothing
to train is not trained: its plan is taken back and its groups are replaced, with a bound.
Where ranks and engines share devices, ranks compute in `activities.training.shared_devices` alone.
Every write is fenced by the epoch of the trainer's lease, which this process holds. `trainer` is
met only through the TrainerBackend protocol; `workers.trainer` passes the Ray driver in.
"""

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
from pydantic import SecretStr
from temporalio import activity

from activities.implements import implements
from activities.training.batch_reading import read_batch
from activities.training.held_version import HeldVersion
from activities.training.shared_devices import SharedDevices, shares
from activities.training.step_batch import step_batch
from activities.training.told_rollouts import with_measured
from activities.training.trainer_backend import Progress, TrainerBackend
from infra.db.database import Database
from infra.db.runs import campaigns, events
from infra.db.training import batches, discards, policies, retention, steps, trainers
from infra.db.training.batches import BatchGroup
from infra.db.training.discards import Batch
from infra.db.training.step_clock import step_clock
from infra.policy.model.weight_files import weights_digest
from infra.temporal.heartbeat import heartbeating
from infra.tracking import spans
from mainspring.algorithms.gap import GapMode, LogprobGap
from mainspring.artifacts import layout
from mainspring.artifacts.fingerprint import Fingerprint
from mainspring.artifacts.layout import HF_DIRECTORY
from mainspring.artifacts.retention import kept_versions
from mainspring.config.any_run import ranks_of
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import MainspringError
from mainspring.ids import CampaignId
from mainspring.protocol.activities import CHECK_LOGPROBS, PREPARE_POLICY, TRAIN_STEP
from mainspring.protocol.campaign import (
    CampaignRef,
    CheckInput,
    CheckResult,
    PolicyRef,
    StepInput,
    StepResult,
)
from mainspring.status import EventKind, StepStatus
from mainspring.training.step_metrics import Origin, TrainerJob
from mainspring.training.training_faults import (
    gap_too_large,
    nothing_to_retrain,
    nothing_to_train,
)
from mainspring.trajectories.samples import Sample, content_digest, samples_of

log = structlog.get_logger()
CHECKED_SAMPLES = 64
"""Rollouts of an evaluation whose log-probs are recomputed."""
READY_LOOK_S = 1.0
"""Between two looks at the ranks while nothing is asked of them."""
NOT_READY_S = 30.0
"""After ranks could not be started: the activity that needs them tells why."""


class TrainingActivities:
    def __init__(
        self,
        db: Database,
        home: Path,
        backend: TrainerBackend,
        epoch: int,
        api_key: SecretStr | None = None,
    ) -> None:
        """`epoch`: of the campaign's lease that this process holds; `api_key`: of its engines."""
        self._db = db
        self._epoch = epoch
        self._home = home
        self._backend = backend
        self.held = HeldVersion(db, backend)
        self._devices = SharedDevices(db, self.held, backend, api_key or SecretStr(""))

    @implements(PREPARE_POLICY)
    async def prepare_policy(self, ref: CampaignRef) -> PolicyRef:
        if await policies.latest_policy(self._db, ref.campaign) is None:
            job = await self._job(ref.campaign)
            directory = self._directory(ref.campaign, 0)
            async with (
                heartbeating("warm start") as beat,
                self.held.in_turn,
                self._devices.by_ranks(job, beat.show),
            ):
                await self.held.run(self._backend.prepare, job, directory, beat.show)
            await policies.put_first_policy(
                self._db,
                ref.campaign,
                str(directory / HF_DIRECTORY),
                str(directory),
                trainer_epoch=self._epoch,
                stamp=self._backend.ranks.stamp,
                fingerprint=await self._fingerprint(job.config, directory),
            )
        return PolicyRef(campaign=ref.campaign, version=0)

    @implements(TRAIN_STEP)
    async def train_step(self, ask: StepInput) -> StepResult:
        done = await steps.get_step(self._db, ask.campaign, ask.step)
        if done is not None and done.status is StepStatus.DONE:
            return _result(ask.step, done.metrics)
        if done is None:  # an attempt before this one, or an operator, took the plan back
            return _replaced(ask.step, "its batch is not planned any more")
        started = time.monotonic()
        async with (
            heartbeating("loading the batch") as beat,
            self.held.in_turn,
            AsyncExitStack() as turn,
        ):
            job = await self._job(ask.campaign)
            config = job.at(ask.step)
            trainer = config.trainer
            before = await policies.get_policy(self._db, ask.campaign, ask.step - 1)
            with spans.span("load batch", step=ask.step):
                groups = await read_batch(self._db, job, ask.step)
                batch = await asyncio.to_thread(step_batch, groups, trainer, version=before.version)
            if batch.nothing is not None:
                log.warning(
                    "nothing to train",
                    campaign=ask.campaign,
                    step=ask.step,
                    why=batch.nothing.reason,
                )
                if batch.nothing.is_replaced:
                    return await self._replace(job, ask.step, groups, batch.nothing.reason)
            await self._tell_repeated(ask)
            await turn.enter_async_context(self._devices.by_ranks(job, beat.show))
            with spans.span("hold version", version=before.version):
                await self.held.hold(job, before.version, beat.show)
            beat.note = f"{len(batch.samples)} samples"
            with spans.span("compute", step=ask.step, num_samples=len(batch.samples)):
                measured = await self.held.run(self._backend.train_step, batch.samples, ask.step)
            beyond = measured.gap.beyond(config.gap_bounds)
            if beyond:  # only warned of: the backend raises where bounds are enforced
                log.warning("log-prob gap", campaign=ask.campaign, step=ask.step, beyond=beyond)
            beat.note = "saving"
            await trainers.check(self._db, ask.campaign, self._epoch)
            directory = self._directory(ask.campaign, ask.step)
            is_last = job.is_last(ask.step)
            is_due = is_last or trainer.has_checkpoint(ask.step)
            # That of the last step is waited for: no step follows.
            later = is_due and trainer.checkpoint_in_background and not is_last
            is_whole = is_due and not later
            await self._finish_checkpoint(ask.campaign, wait=is_due)
            save = partial(self._backend.save, weights_only=not is_whole)
            with spans.span("save", step=ask.step, is_whole=is_whole):
                await self.held.run(save, job, directory, ask.step, batch.digest)
            clock = await step_clock(self._db, ask.campaign, ask.step)
            if job.last_step is not None:
                clock = replace(clock, engine_idle_s=None, engine_request_s=None)
            metrics = measured.figures | batch.figures | clock.figures(measured.num_tokens)
            told = await asyncio.to_thread(
                with_measured, batch.rollouts, measured.details, groups, batch.samples
            )
            metrics |= {"seconds": time.monotonic() - started}
            with spans.span("commit", step=ask.step):
                await steps.commit_step(
                    self._db,
                    ask.campaign,
                    ask.step,
                    metrics=metrics,
                    policy_path=str(directory / HF_DIRECTORY),
                    checkpoint=str(directory) if is_whole else None,
                    groups=[group.id for group in groups],
                    rollouts=told.rollouts,
                    gaps=told.gaps,
                    kept=told.kept,
                    trainer_epoch=self._epoch,
                    stamp=self._backend.ranks.stamp,
                    fingerprint=await self._fingerprint(
                        job.config, directory, batch.samples, measured.gradient
                    ),
                )
            if later:
                begin = self._backend.begin_checkpoint
                await self.held.run(begin, job, directory, ask.step)
            await self._prune(ask.campaign, trainer.keep_checkpoints, trainer.keep_best)
        return _result(ask.step, metrics)

    async def _tell_repeated(self, ask: StepInput) -> None:
        """Tell of an attempt after the first: whatever ended that, its batch is trained once."""
        attempt = activity.info().attempt if activity.in_activity() else 1
        if attempt == 1:
            return
        text = f"step {ask.step} is trained again from its batch (attempt {attempt})"
        event = events.Event(
            EventKind.STEP_REPEATED,
            f"step {ask.step}",
            text,
            ask.campaign,
            data={"step": ask.step, "attempt": attempt},
        )
        await events.tell(self._db, event)

    async def _replace(
        self, job: TrainerJob, step: int, groups: Sequence[BatchGroup], reason: str
    ) -> StepResult:
        """Have other groups played for a step. Raises NothingToTrain after too many."""
        if job.last_step is not None:
            raise nothing_to_retrain(job.campaign, step, reason)
        most = job.at(step).trainer.flat_groups_bound
        seen = Batch(step, [group.id for group in groups])
        if not await discards.replace_batch(
            self._db, job.campaign, seen, reason, most_groups=most, trainer_epoch=self._epoch
        ):
            raise nothing_to_train(job.campaign, step, reason, most)
        return _replaced(step, reason)

    async def _finish_checkpoint(self, campaign: CampaignId, *, wait: bool) -> None:
        """Make the checkpoint that was written in the background one to resume from, once it is
        whole; the caller holds `in_turn`."""
        finish = partial(self._backend.ranks.background.finish, wait=wait)
        version = await self.held.run(finish)
        if version is None:
            return
        directory = str(self._directory(campaign, version))
        await policies.put_checkpoint(
            self._db, campaign, version, directory, trainer_epoch=self._epoch
        )
        log.info("checkpoint written in the background", campaign=campaign, version=version)

    @implements(CHECK_LOGPROBS)
    async def check_logprobs(self, ask: CheckInput) -> CheckResult:
        async with heartbeating("recomputing") as beat, self.held.in_turn:
            job = await self._job(ask.campaign)
            config = job.at(ask.version + 1)
            [group] = await batches.load_groups(self._db, [ask.group])
            samples = await asyncio.to_thread(_checked_samples, group)
            async with self._devices.by_ranks(job, beat.show):
                gap = await self._gap(job, ask.version, samples, beat.show)
            await policies.put_gap(self._db, ask.campaign, ask.version, gap.max, gap.num_tokens)
        beyond = gap.beyond(config.gap_bounds)
        if beyond:
            fault = gap_too_large(ask.campaign, "evaluation", ask.version, gap, beyond)
            if config.trainer.gap.mode is GapMode.ENFORCE:
                raise fault
            log.warning("log-prob gap", campaign=ask.campaign, version=ask.version, beyond=beyond)
        return CheckResult(logprob_gap_max=gap.max, num_tokens=gap.num_tokens)

    async def _gap(
        self, job: TrainerJob, version: int, samples: list[Sample], show: Progress
    ) -> LogprobGap:
        """Log-prob gap of tokens of `version`. Ranks that hold another one, by then usually the
        next, keep it: they compute with what was exported, which is what engines served."""
        if not await self.held.run(self._backend.ranks.has_ranks):
            newest = await policies.latest_policy(self._db, job.campaign)
            assert newest is not None
            await self.held.hold(job, newest.version, show)
        if await self.held.holds(job, version):
            return await self.held.run(self._backend.ranks.logprob_gap, samples, version)
        policy = await policies.get_policy(self._db, job.campaign, version)
        export = Path(policy.path)
        return await self.held.run(self._backend.ranks.logprob_gap, samples, version, export)

    async def stay_ready(self, campaign: CampaignId) -> None:
        """Start ranks that died between two calls, or with the process before this one, ahead of
        the step that will need them. Returns never."""
        while True:
            try:
                await self._get_ready(campaign)
            except MainspringError as error:
                log.warning("ranks not started ahead", campaign=campaign, reason=error.message)
                await asyncio.sleep(NOT_READY_S)
            await asyncio.sleep(READY_LOOK_S)

    async def _get_ready(self, campaign: CampaignId) -> None:
        if self.held.in_turn.locked():
            return
        if await self.held.run(self._backend.ranks.has_ranks):
            if self._backend.ranks.background.version is not None:
                async with self.held.in_turn:
                    await self._finish_checkpoint(campaign, wait=False)
            return
        record = await campaigns.get(self._db, campaign)
        newest = await policies.latest_policy(self._db, campaign)
        if newest is None or record.status in campaigns.ENDS:
            return
        job = await self._job(campaign)
        if shares(job):  # engines have the devices
            return
        async with self.held.in_turn:
            await self.held.hold(job, newest.version, lambda note: None)

    async def _fingerprint(
        self,
        config: CampaignConfig,
        directory: Path,
        samples: list[Sample] | None = None,
        gradient: str | None = None,
    ) -> Fingerprint | None:
        """Fingerprint of the version at `directory`; None for a campaign that promises no bits."""
        if config.batches is None:
            return None
        weights = await asyncio.to_thread(weights_digest, directory / HF_DIRECTORY)
        batch = None if samples is None else await asyncio.to_thread(content_digest, samples)
        return Fingerprint(batch=batch, gradient=gradient, weights=weights)

    async def _job(self, campaign: CampaignId) -> TrainerJob:
        record = await campaigns.get(self._db, campaign)
        origin = Origin(campaign=campaign, uid=record.uid, config_digest=record.config_digest)
        config = ranks_of(record.as_stored)
        return TrainerJob(
            config,
            origin,
            self._epoch,
            record.changes,
            last_step=record.num_steps if record.is_retrained else None,
            rescores=record.rescores,
        )

    def _directory(self, campaign: CampaignId, version: int) -> Path:
        return layout.policy(self._home, campaign, version)

    async def _prune(self, campaign: CampaignId, keep_checkpoints: int, keep_best: int = 0) -> None:
        """Remove what no invariant and no wish of the run's file needs any more. A directory of a
        later version was left by an attempt that did not get as far as its row."""
        versions = await retention.versions(self._db, campaign)
        to_keep = kept_versions(versions, keep_checkpoints, keep_best)
        to_keep.add(self._backend.ranks.background.version or 0)
        for directory in self._directory(campaign, 0).parent.glob("v" + "[0-9]" * 5):
            version = int(directory.name[1:])
            if version not in to_keep and version <= versions[-1].version:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


def _checked_samples(group: BatchGroup) -> list[Sample]:
    return [
        sample
        for rollout in group.rollouts[:CHECKED_SAMPLES]
        for sample in samples_of(rollout.id, rollout.calls, trained=rollout.trained)
    ]


def _replaced(step: int, reason: str) -> StepResult:
    return StepResult(
        version=step - 1, reward_mean=0.0, logprob_gap_max=None, seconds=0.0, replaced=reason
    )


def _result(step: int, metrics: Mapping[str, float | None]) -> StepResult:
    return StepResult(
        version=step,
        reward_mean=metrics["reward_mean"] or 0.0,
        logprob_gap_max=metrics["logprob_gap_max"],
        seconds=metrics["seconds"] or 0.0,
    )
