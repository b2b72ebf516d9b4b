"""What the training activities drive: the Ray driver, and how version 0 comes to be.

Invariants: version 0 is a function of configuration and seed (a warm start that was cut off resumes
from its last checkpoint with the same batches, in a reproducible campaign under the same stamp);
the driver holds exactly one version, and `load` restores it from its checkpoint whenever ranks or
process were lost or another version is asked for.
"""

import random
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bundled.model import make_bundled_model
from bundled.warm_start_data import copy_batch, supervised_batch
from mainspring import layout
from mainspring.algorithms.gap import LogprobGap
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.optimizer import WarmStartConfig
from mainspring.config.section import BUNDLED
from mainspring.ids import campaign_id
from mainspring.stamp import Stamp
from mainspring.step_metrics import StepMetrics, TrainerJob
from mainspring.training_faults import TrainerLost
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import WeightedSequence
from trainer.checkpoint import Identity
from trainer.driver import TrainerDriver
from trainer.schedule import copy_scale, warm_start_scale

SAVE_EVERY = 100
"""Warm-start steps between checkpoints: a crash repeats about 15 s of work."""
REPORT_EVERY = 10


class RayTrainer:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._driver = TrainerDriver()
        self._version: int | None = None
        self._digest: str | None = None
        """Of the manifest of the version that the ranks hold."""

    def prepare(self, job: TrainerJob, directory: Path, progress: Callable[[str], None]) -> None:
        """Version 0 at `directory`. Raises ModelError and CheckpointUnusable."""
        config = job.config
        self._version = None
        progress("starting the ranks")
        self._start(job)
        warm = config.trainer.warm_start if config.policy.model == BUNDLED else None
        if warm is not None and not directory.exists():
            self._warm_start(job, warm, progress)
        identity = Identity(origin=job.origin, version=0)
        self._digest = self._driver.save(directory, identity, job.epoch).digest
        self._version = 0
        shutil.rmtree(self._warm_directory(config), ignore_errors=True)

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        if self._version == version and self._driver.has_ranks():
            return
        self._version = None
        try:
            manifest = self._driver.load(checkpoint, job.origin, version)
        except TrainerLost:
            # Not started in this process yet, or a rank died in an earlier call.
            self._start(job)
            manifest = self._driver.load(checkpoint, job.origin, version)
        self._version, self._digest = version, manifest.digest

    def is_ready(self) -> bool:
        return self._driver.has_ranks()

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        """`step` counts from 1 and starts from version step - 1."""
        version, self._version = self._version, None
        assert version is not None and version == step - 1, f"step {step} on version {version}"
        return self._driver.train_step(samples, step=version, current_version=version)

    def save(self, job: TrainerJob, directory: Path, version: int, batch: str) -> None:
        identity = Identity(origin=job.origin, version=version, parent=self._digest, batch=batch)
        self._digest = self._driver.save(directory, identity, job.epoch).digest
        self._version = version

    def logprob_gap(self, samples: list[Sample], version: int) -> LogprobGap:
        return self._driver.logprob_gap(samples, version)

    def stamp(self) -> Stamp:
        return self._driver.stamp

    def check(self) -> None:
        """Raises TrainerLost when no call can succeed in this process any more."""
        self._driver.check()

    def shutdown(self) -> None:
        self._driver.shutdown()

    def _start(self, job: TrainerJob) -> None:
        logs = layout.trainer_logs(self._home, campaign_id(job.config.name))
        self._driver.start(job.config, self._base(job.config), logs)

    def _base(self, config: CampaignConfig) -> Path:
        if config.policy.model != BUNDLED:
            return Path(config.policy.model)
        base = layout.base_model(self._home, campaign_id(config.name))
        make_bundled_model(base, config.seed)
        return base

    def _warm_directory(self, config: CampaignConfig) -> Path:
        return layout.warm_start(self._home, campaign_id(config.name))

    def _warm_start(
        self, job: TrainerJob, warm: WarmStartConfig, progress: Callable[[str], None]
    ) -> None:
        config = job.config
        directory = self._warm_directory(config)
        if config.schedule is Schedule.REPRODUCIBLE:
            # Version 0 is of one stamp: what another machine has begun is not resumed on this one.
            directory /= self._driver.stamp.digest
        tokenizer = AutoTokenizer.from_pretrained(self._base(config))
        done = self._resume(job, directory)
        total = warm.copy_steps + warm.steps
        with ThreadPoolExecutor(max_workers=1) as ahead:  # draws a batch while the last one trains

            def draw(step: int) -> "Future[tuple[list[WeightedSequence], float]]":
                return ahead.submit(_warm_start_batch, config.seed, step, warm, tokenizer)

            drawn = draw(done)
            for step in range(done, total):
                batch, scale = drawn.result()
                drawn = draw(step + 1)
                loss = self._driver.supervised_step(batch, scale)
                if step % REPORT_EVERY == 0:
                    progress(f"warm start {step} of {total}, loss {loss:.2f}")
                if (step + 1) % SAVE_EVERY == 0:
                    identity = Identity(
                        origin=job.origin, version=0, batch=f"warm start {step + 1}"
                    )
                    self._driver.save(directory / f"{step + 1:05d}", identity, job.epoch)

    def _resume(self, job: TrainerJob, directory: Path) -> int:
        """Load the newest checkpoint of the warm start; how many steps it has behind it."""
        complete = sorted(path for path in directory.glob("[0-9]" * 5) if path.is_dir())
        if not complete:
            return 0
        self._driver.load(complete[-1], job.origin, version=0)
        return int(complete[-1].name)


def _warm_start_batch(
    seed: int, step: int, warm: WarmStartConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[WeightedSequence], float]:
    """Batch and rate factor of one warm-start step: a function of the seed and the step alone."""
    rng = random.Random(f"warm-start/{seed}/{step}")
    if step < warm.copy_steps:
        return copy_batch(rng, len(tokenizer), warm.copy_batch_size), copy_scale(step)
    batch = supervised_batch(rng, tokenizer, warm.batch_size, warm.context_loss_weight)
    return batch, warm_start_scale(step - warm.copy_steps, warm.steps)
