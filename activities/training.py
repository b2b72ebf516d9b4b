"""Training on the trainer's own queue: the first policy, one step, the log-prob check.

Invariant 8: the batch is read from the plan in Postgres; checkpoint and weights are on disk under
their final name before `commit_step` makes them visible together with the consumed groups; after a
crash anywhere the same step runs again from the checkpoint that the store names. `trainer` is met
only through the TrainerBackend protocol; `workers.trainer` passes the Ray driver in.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import heartbeating
from infra.db import batches, campaigns, policies, steps
from infra.db.batches import BatchGroup
from infra.db.database import Database
from infra.db.policies import PolicyRecord
from mainspring import layout
from mainspring.advantages import group_advantages
from mainspring.config import CampaignConfig
from mainspring.ids import CampaignId
from mainspring.protocol.campaign import (
    CampaignRef,
    CheckInput,
    CheckResult,
    PolicyRef,
    StepInput,
    StepResult,
)
from mainspring.protocol.names import Activity
from mainspring.samples import Sample, sample_from_turns
from mainspring.status import StepStatus
from mainspring.training import LogprobGap, StepMetrics

HF_DIRECTORY = "hf"
"""Where a saved version keeps the weights that engines load."""

T = TypeVar("T")
Progress = Callable[[str], None]
LOGPROB_GAP = "LogprobGap"
"""Type of the failure that ends a campaign whose engine and trainer disagree."""
CHECKED_SAMPLES = 64
"""Rollouts of an evaluation whose log-probs are recomputed."""


class TrainerBackend(Protocol):
    """What trains. Blocking calls, one at a time, from one thread."""

    def prepare(self, config: CampaignConfig, directory: Path, progress: Progress) -> None:
        """Make version 0 at `directory`: base model, warm start. Resumes what a crash left."""
        ...

    def load(self, config: CampaignConfig, checkpoint: Path, version: int) -> None:
        """Be at `version`, from `checkpoint` unless already there."""
        ...

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics: ...

    def save(self, directory: Path, version: int) -> None:
        """Checkpoint and Hugging Face weights, complete under the final name or not at all."""
        ...

    def logprob_gap(self, samples: list[Sample], version: int) -> LogprobGap: ...


class TrainingActivities:
    def __init__(self, db: Database, home: Path, backend: TrainerBackend) -> None:
        self._db = db
        self._home = home
        self._backend = backend
        # One thread: the backend's calls must never overlap, also when an attempt that lost its
        # heartbeat is still running while its successor starts.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")

    @activity.defn(name=Activity.PREPARE_POLICY)
    async def prepare_policy(self, ref: CampaignRef) -> PolicyRef:
        if await policies.latest_policy(self._db, ref.campaign) is None:
            config = (await campaigns.get(self._db, ref.campaign)).config
            directory = self._directory(ref.campaign, 0)
            async with heartbeating("warm start") as beat:

                def progress(note: str) -> None:
                    beat.note = note

                await self._run(self._backend.prepare, config, directory, progress)
            await policies.put_first_policy(
                self._db, ref.campaign, str(directory / HF_DIRECTORY), str(directory)
            )
        return PolicyRef(campaign=ref.campaign, version=0)

    @activity.defn(name=Activity.TRAIN_STEP)
    async def train_step(self, ask: StepInput) -> StepResult:
        done = await steps.get_step(self._db, ask.campaign, ask.step)
        if done is not None and done.status is StepStatus.DONE:
            return _result(ask.step, done.metrics)
        started = time.monotonic()
        async with heartbeating("loading the batch") as beat:
            config = (await campaigns.get(self._db, ask.campaign)).config
            before = await policies.get_policy(self._db, ask.campaign, ask.step - 1)
            batch = await batches.load_batch(self._db, ask.campaign, ask.step)
            samples, about = batch_samples(batch, config, version=before.version)
            await self._run(self._backend.load, config, _checkpoint(before), before.version)
            beat.note = f"{len(samples)} samples"
            measured = await self._run(self._backend.train_step, samples, ask.step)
            if measured.logprob_gap_max > config.trainer.max_logprob_gap:
                raise _gap_error(measured.logprob_gap_max, config, f"step {ask.step}")
            beat.note = "saving"
            directory = self._directory(ask.campaign, ask.step)
            await self._run(self._backend.save, directory, ask.step)
            metrics = asdict(measured) | about | {"seconds": time.monotonic() - started}
            await steps.commit_step(
                self._db,
                ask.campaign,
                ask.step,
                metrics=metrics,
                policy_path=str(directory / HF_DIRECTORY),
                checkpoint=str(directory),
            )
            await self._prune(ask.campaign, ask.step, config.trainer.keep_checkpoints)
        return _result(ask.step, metrics)

    @activity.defn(name=Activity.CHECK_LOGPROBS)
    async def check_logprobs(self, ask: CheckInput) -> CheckResult:
        async with heartbeating("recomputing"):
            config = (await campaigns.get(self._db, ask.campaign)).config
            policy = await policies.get_policy(self._db, ask.campaign, ask.version)
            [group] = await batches.load_groups(self._db, [ask.group])
            samples = [
                sample_from_turns(rollout.id, rollout.generations)
                for rollout in group.rollouts[:CHECKED_SAMPLES]
                if rollout.generations
            ]
            await self._run(self._backend.load, config, _checkpoint(policy), ask.version)
            gap = await self._run(self._backend.logprob_gap, samples, ask.version)
            await policies.put_gap(self._db, ask.campaign, ask.version, gap.max, gap.num_tokens)
        if gap.max > config.trainer.max_logprob_gap:
            raise _gap_error(gap.max, config, f"the evaluation of version {ask.version}")
        return CheckResult(logprob_gap_max=gap.max, num_tokens=gap.num_tokens)

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _directory(self, campaign: CampaignId, version: int) -> Path:
        return layout.policy(self._home, campaign, version)

    async def _prune(self, campaign: CampaignId, newest: int, keep: int) -> None:
        """Remove checkpoints older than the newest `keep`; version 0 stays for the tokenizer."""
        for version in range(max(1, newest - keep - 1), newest - keep + 1):
            await asyncio.to_thread(
                shutil.rmtree, self._directory(campaign, version), ignore_errors=True
            )


def batch_samples(
    batch: list[BatchGroup], config: CampaignConfig, *, version: int
) -> tuple[list[Sample], dict[str, float]]:
    """The step's samples with their advantages, and figures about the batch.

    Masked rollouts give no sample. Raises BrokenTrajectory when stored turns do not line up.
    """
    samples: list[Sample] = []
    rewards: list[float] = []
    num_mixed = 0
    for group in batch:
        rewards_G = [rollout.reward for rollout in group.rollouts]
        advantages_G = group_advantages(rewards_G, normalize_std=config.trainer.normalize_std)
        scored = [reward for reward in rewards_G if reward is not None]
        num_mixed += len(set(scored)) > 1
        rewards += scored
        for rollout, advantage in zip(group.rollouts, advantages_G, strict=True):
            if advantage is not None and rollout.generations:
                samples.append(sample_from_turns(rollout.id, rollout.generations, advantage))
    oldest = [int(s.versions[s.action_mask].min()) for s in samples if s.num_action_tokens]
    return samples, {
        "reward_mean": sum(rewards) / max(1, len(rewards)),
        "mixed_groups": float(num_mixed),
        "staleness_mean": sum(version - v for v in oldest) / max(1, len(oldest)),
    }


def _checkpoint(policy: PolicyRecord) -> Path:
    assert policy.checkpoint is not None, f"policy version {policy.version} has no checkpoint"
    return Path(policy.checkpoint)


def _gap_error(gap: float, config: CampaignConfig, where: str) -> ApplicationError:
    return ApplicationError(
        f"served and recomputed log-probs differ by {gap:.2e} in {where}, allowed is "
        f"{config.trainer.max_logprob_gap:.0e}: engine and trainer do not hold the same weights, "
        "or compute them differently",
        type=LOGPROB_GAP,
        non_retryable=True,
    )


def _result(step: int, metrics: Mapping[str, float | None]) -> StepResult:
    return StepResult(
        version=step,
        reward_mean=metrics["reward_mean"] or 0.0,
        logprob_gap_max=metrics["logprob_gap_max"] or 0.0,
        seconds=metrics["seconds"] or 0.0,
    )
