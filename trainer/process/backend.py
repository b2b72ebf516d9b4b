"""The version that a trainer's ranks hold, and how they come to hold another one.

Invariants: version 0 is a function of configuration and seed (`trainer.process.warm_start`); the
driver holds exactly one version, and `load` restores one from its checkpoint whenever ranks or
process were lost or another version is asked for. A version without a checkpoint is trained again
by the caller, from the newest before it that has one. The reference of a KL penalty is version 0,
whose checkpoint stays as long as the campaign. Torch is imported for version 0 alone: a trainer
that is started again has its ranks sooner.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bundled.base_check import check_base
from mainspring.artifacts import layout
from mainspring.config.campaign import CampaignConfig
from mainspring.config.section import BUNDLED
from mainspring.ids import campaign_id
from mainspring.training.step_metrics import StepMetrics, SupervisedMetrics, TrainerJob
from mainspring.training.training_faults import TrainerLost
from mainspring.trajectories.samples import Sample
from trainer.engines.checkpoint import Identity
from trainer.process.batch_file import BatchFile, batch_file
from trainer.process.driver import TrainerDriver


class RayTrainer:
    def __init__(self, home: Path, ranks: TrainerDriver) -> None:
        self._home = home
        self.ranks = ranks
        self._job: TrainerJob | None = None
        """The campaign whose version the ranks hold."""
        self._version: int | None = None
        self._step: int | None = None
        """The step that the weights of the ranks are after; a supervised run has versions of
        some."""
        self._digest: str | None = None
        """Digest of the identity of the version that the ranks hold."""

    def prepare(self, job: TrainerJob, directory: Path, progress: Callable[[str], None]) -> None:
        """Version 0 at `directory`. Raises ModelError and CheckpointUnusable."""
        config = job.config
        self._job, self._version = job, None
        progress("starting the ranks")
        self._start(job)
        warm = config.trainer.warm_start if config.policy.model == BUNDLED else None
        if warm is not None and not directory.exists():
            from trainer.process.warm_start import warm_start

            directory_so_far = self._warm_directory(config)
            warm_start(self.ranks, job, warm, self._base(config), directory_so_far, progress)
        if config.trainer.critic is not None:
            self.ranks.begin_critic()
        identity = Identity(origin=job.origin, version=0)
        self.ranks.save(directory, identity, job.epoch)
        self._version = self._step = 0
        self._digest = identity.digest
        self.ranks.keep_reference()
        shutil.rmtree(self._warm_directory(config), ignore_errors=True)

    def holds(self, job: TrainerJob, version: int) -> bool:
        self._job = job
        return self._version == version and self.ranks.has_ranks()

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        if self.holds(job, version):
            self._step = version
            return
        self._version = self._step = None
        try:
            manifest = self.ranks.load(checkpoint, job.origin, version)
        except TrainerLost:
            # Not started in this process yet, or a rank died in an earlier call.
            self._start(job)
            self._restore_reference(job)
            manifest = self.ranks.load(checkpoint, job.origin, version)
        self._version = self._step = version
        self._digest = manifest.identity.digest

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        """`step` counts from 1 and starts from version step - 1. Raises BatchFileDamaged."""
        version, self._version = self._version, None
        assert version is not None and version == step - 1, f"step {step} on version {version}"
        assert self._job is not None
        config = self._job.at(step)
        with self._moving_to(step, samples) as batch:
            return self.ranks.train_step(
                batch, step=version, current_version=version, config=config
            )

    def supervised_step(
        self, samples: list[Sample], step: int, num_steps: int
    ) -> SupervisedMetrics:
        """`step` counts from 1. Until they are saved, the weights after it are those of no version.
        Raises BatchFileDamaged and TrainerLost."""
        self._version = None
        self._require_step(step - 1)
        with self._moving_to(step, samples) as batch:
            return self.ranks.sft_step(batch, step=step - 1, num_steps=num_steps)

    def save(
        self,
        job: TrainerJob,
        directory: Path,
        version: int,
        batch: str,
        *,
        weights_only: bool = False,
    ) -> None:
        self._require_step(version)
        identity = self._identity(job, version, batch)
        self.ranks.save(directory, identity, job.epoch, weights_only=weights_only)
        self._version, self._digest = version, identity.digest

    def begin_checkpoint(self, job: TrainerJob, directory: Path, version: int) -> None:
        assert self._version == version, f"version {version} is not held"
        self.ranks.begin_checkpoint(directory, job.origin)

    def trained_again(self, job: TrainerJob, version: int, batch: str) -> None:
        self._require_step(version)
        self._digest = self._identity(job, version, batch).digest
        self._version = version

    @contextmanager
    def _moving_to(self, step: int, samples: list[Sample]) -> Iterator[BatchFile]:
        """The step's batch for the ranks, whose weights are those after it when the block ends."""
        job, self._step = self._job, None
        assert job is not None
        folder = layout.batches(self._home, campaign_id(job.config.name))
        with batch_file(folder, samples, step=step, epoch=job.epoch) as batch:
            yield batch
        self._step = step

    def _require_step(self, step: int) -> None:
        """Raises TrainerLost unless the weights are those after `step`: ranks may have died between
        two calls, and others have been loaded with the newest version since."""
        if self._step != step:
            assert self._job is not None
            raise TrainerLost(
                f"campaign {self._job.config.name}: the weights after step {step} were lost with a "
                "rank",
                remedy="the steps after the newest version are computed again",
            )

    def _identity(self, job: TrainerJob, version: int, batch: str) -> Identity:
        return Identity(origin=job.origin, version=version, parent=self._digest, batch=batch)

    def _start(self, job: TrainerJob) -> None:
        logs = layout.trainer_logs(self._home, campaign_id(job.config.name))
        self.ranks.start(job.config, self._base(job.config), logs)

    def _restore_reference(self, job: TrainerJob) -> None:
        """New ranks keep version 0 as the reference of a KL penalty, as those before them did."""
        if job.config.trainer.kl.coef:
            version_0 = layout.policy(self._home, campaign_id(job.config.name), 0)
            self.ranks.load(version_0, job.origin, 0)
            self.ranks.keep_reference()

    def _base(self, config: CampaignConfig) -> Path:
        if config.policy.model != BUNDLED:
            return Path(config.policy.model)
        base = layout.base_model(self._home, campaign_id(config.name))
        if base.exists():
            check_base(base, config.seed)
        else:
            from bundled.model import make_bundled_model

            make_bundled_model(base, config.seed, config.agent)
        return base

    def _warm_directory(self, config: CampaignConfig) -> Path:
        return layout.warm_start(self._home, campaign_id(config.name))
