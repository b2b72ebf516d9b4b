"""The driver: one object that owns a campaign's ranks and moves them together.

Every method blocks; an activity calls it from a thread, one call at a time. Ranks are Ray actors
of this process: they die with it, also by SIGKILL, and nothing but checkpoints survives. A call
ends with TrainerLost soon after a rank or the cluster under it ended. With more than one host,
checkpoint directories must be on a file system all of them share.
Imports neither torch nor Megatron: those load in the actors.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, RayError

from mainspring.algorithms.gap import LogprobGap, measure
from mainspring.artifacts.stamp import Stamp
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import MainspringError
from mainspring.training.sending import Bucket, Meeting
from mainspring.training.step_metrics import Origin, StepMetrics, SupervisedMetrics, of_all_ranks
from mainspring.training.training_faults import (
    CheckpointUnusable,
    TrainerFenced,
    TrainerLost,
)
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import WeightedSequence
from mainspring.words.causes import memory_kills
from trainer.engines import checkpoint
from trainer.engines.checkpoint import Identity, Manifest, Sharding
from trainer.process import rank_ends, rank_processes
from trainer.process.background_checkpoint import BackgroundCheckpoint
from trainer.process.batch_file import BatchFile
from trainer.process.rank_calls import (
    BatchMethod,
    P,
    RankCalls,
    RankMethod,
    SenderCalls,
    SenderMethod,
    T,
)
from trainer.process.rank_log import rank_log
from trainer.process.rank_processes import RankProcesses, RankPulse
from trainer.process.ray_cluster import LOCAL, RayCluster

POLL_S = 2.0
"""Between two looks at the cluster while ranks compute."""
DEATH_NEWS_TIMEOUT_S = 10.0
"""Ray notices the death of a local process at once and that of a host after seconds."""


class TrainerDriver:
    def __init__(self, *, address: str = LOCAL):
        """`address`: a Ray cluster's, or LOCAL to start one."""
        self._cluster = RayCluster(address)
        self._processes = RankProcesses(self._cluster)
        self._tensor_parallel = 1
        self._sharding = Sharding.RANKS
        self._has_critic = False
        self.background = BackgroundCheckpoint(self._all)
        self._actors: list[Any] = []
        self._pids: list[int] = []
        self._logs: Path | None = None
        self._stamp: Stamp | None = None
        self._memory_kills: int | None = None

    def start(self, config: CampaignConfig, model_dir: Path, logs: Path | None = None) -> None:
        """Make the ranks, each with the weights of `model_dir`, each printing to a file in `logs`.
        Stops ranks made before. Raises DeviceMissing."""
        self._stop_actors()
        trainer = config.trainer
        world_size = trainer.world_size
        self._logs = logs.absolute() if logs else None
        self._memory_kills = memory_kills()
        self._actors = self._processes.take(config)
        self._tensor_parallel = trainer.tensor_parallel
        self._has_critic = trainer.critic is not None
        source = model_dir.absolute()
        try:
            host, port = self._get([self._actors[0].open_store.remote()])[0]
            files = [rank_log(self._logs, n) if self._logs else None for n in range(world_size)]
            starts = zip(self._actors, files, strict=True)
            self._pids = self._get(
                [a.start.remote(config, source, host, port, f) for a, f in starts]
            )
            self._cluster.own(self._pids)
            self._stamp = self._all(RankCalls.stamp)[0]
            self._sharding = self._all(RankCalls.sharding)[0]
        except BaseException:
            self._stop_actors()
            raise

    def warm(self, config: CampaignConfig) -> None:
        """Start Ray and processes that import what ranks need, so that `start` finds them. Raises
        DeviceMissing."""
        self._processes.warm(config)

    def is_warm(self) -> bool:
        """After `warm`: whether they have."""
        self.check()
        return self._processes.are_warm()

    @property
    def stamp(self) -> Stamp:
        """Facts that the bits of the ranks that were started last depend on."""
        assert self._stamp is not None, "the ranks were never started"
        return self._stamp

    def supervised_step(self, sequences: Sequence[WeightedSequence], scale: float) -> float:
        """One warm-start step at `scale` times the configured rates; returns the loss before."""
        return self._all(RankCalls.supervised_step, list(sequences), scale)[0]

    def sft_step(self, batch: BatchFile, *, step: int, num_steps: int) -> SupervisedMetrics:
        """See `TrainerRank.sft_step`. Raises BatchFileDamaged."""
        return self._on_batch(RankCalls.sft_step, batch, step=step, num_steps=num_steps)[0]

    def train_step(
        self,
        samples: Sequence[Sample] | BatchFile,
        *,
        step: int,
        current_version: int,
        config: CampaignConfig | None = None,
    ) -> StepMetrics:
        """See `TrainerRank.train_step`. Samples given as they are pass through Ray's object store,
        which a large batch does not fit into. Raises BatchFileDamaged."""
        method = RankCalls.train_step
        given = {"step": step, "current_version": current_version, "config": config}
        if isinstance(samples, BatchFile):
            of_ranks = self._on_batch(method, samples, **given)
        else:
            of_ranks = self._all(method, list(samples), **given)
        return of_all_ranks(of_ranks)

    def be_on_device(self, wanted: bool) -> None:
        """See `TrainerRank.be_on_device`; nothing happens without ranks."""
        if self.has_ranks():
            self._all(RankCalls.be_on_device, wanted)

    def begin_critic(self) -> None:
        """See `TrainerRank.begin_critic`."""
        self._all(RankCalls.begin_critic)

    def keep_reference(self) -> None:
        """See `TrainerRank.keep_reference`."""
        self._all(RankCalls.keep_reference)

    def logprobs(
        self, samples: Sequence[Sample], export: Path | None = None
    ) -> list[NDArray[np.float32]]:
        """See `TrainerRank.logprobs`: [T] of each sample."""
        logprobs: dict[int, NDArray[np.float32]] = {}
        for share in self._all(RankCalls.logprobs, list(samples), export and export.absolute()):
            logprobs |= share
        return [logprobs[index] for index in range(len(samples))]

    def logprob_gap(
        self, samples: Sequence[Sample], version: int, export: Path | None = None
    ) -> LogprobGap:
        """Served against recomputed log-probs over the tokens of `version`; `export`: where its
        weights lie, if the ranks hold others."""
        parts = [
            (recomputed - sample.logprobs)[sample.versions == version]
            for recomputed, sample in zip(self.logprobs(samples, export), samples, strict=True)
        ]
        return measure(np.concatenate([np.zeros(0, np.float32), *parts]))

    def save(
        self, directory: Path, identity: Identity, epoch: int, *, weights_only: bool = False
    ) -> Manifest:
        """Write a checkpoint with its Hugging Face export (`trainer.engines.checkpoint`),
        atomically, or the export alone.

        If a whole one of this identity exists (an earlier attempt got this far), it is loaded
        instead: engines may serve it already, and the weights in memory must be those. One of this
        version that is damaged, or was trained on another batch, was never made visible and is
        replaced. Raises CheckpointUnusable for one of another campaign or version, and
        TrainerFenced for a newer trainer's.
        """
        directory = directory.absolute()
        sharding = Sharding.NONE if weights_only else self._sharding
        if directory.exists() and (whole := self._adopt(directory, identity, epoch, sharding)):
            return whole
        temporary = checkpoint.begin(directory, epoch)
        manifest = Manifest(
            identity=identity,
            epoch=epoch,
            tensor_parallel=self._tensor_parallel,
            sharding=sharding,
        )
        try:
            if not weights_only:
                self._all(RankCalls.save_checkpoint, temporary)
            self._all(RankCalls.export_hf, temporary / checkpoint.HF_DIRECTORY)
            has_critic = self._has_critic and not weights_only
            return checkpoint.commit(temporary, directory, manifest, has_critic=has_critic)
        except FileExistsError:
            if whole := self._adopt(directory, identity, epoch, sharding):
                return whole
            raise
        except BaseException as error:
            if not temporary.exists() and not isinstance(error, MainspringError):
                raise TrainerFenced(
                    f"checkpoint {directory}: {temporary.name} was removed while it was written, "
                    "by another trainer"
                ) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def begin_checkpoint(self, directory: Path, origin: Origin) -> None:
        """Write the checkpoint of the version that was saved with weights alone at `directory`,
        while steps follow; see `background`. Raises ConfigError where the engine cannot."""
        directory = directory.absolute()
        self.background.begin(directory, checkpoint.read(directory, origin), self._sharding)

    def _adopt(
        self, directory: Path, identity: Identity, epoch: int, sharding: Sharding
    ) -> Manifest | None:
        """Load the checkpoint that stands under the name of the one to be saved; None after making
        room for that one. Weights alone are written again: there is nothing to load, and until
        their version is committed no engine was told of them."""
        manifest = checkpoint.read(directory, identity.origin)
        if manifest.identity.version != identity.version:
            raise checkpoint.unusable(
                identity.origin,
                directory,
                f"holds policy version {manifest.identity.version}, expected {identity.version}",
            )
        if manifest.epoch > epoch:
            raise TrainerFenced(
                f"checkpoint {directory} was written by a newer trainer, of epoch "
                f"{manifest.epoch}; this one has epoch {epoch}"
            )
        try:
            if manifest.identity == identity and manifest.sharding is sharding is not Sharding.NONE:
                return self.load(directory, identity.origin, identity.version)
        except CheckpointUnusable:
            pass  # as in a batch that was replaced: the store names no checkpoint before its step
        checkpoint.discard(directory)
        return None

    def load(self, directory: Path, origin: Origin, version: int) -> Manifest:
        """Take weights and optimizer of a checkpoint. Raises CheckpointUnusable."""
        self._require_ranks()  # which checkpoints they load is theirs to tell
        directory = directory.absolute()
        manifest = checkpoint.read(directory, origin)
        if manifest.identity.version != version:
            held = manifest.identity.version
            raise checkpoint.unusable(
                origin, directory, f"holds policy version {held}, expected {version}"
            )
        if manifest.sharding is Sharding.NONE:
            raise checkpoint.unusable(
                origin, directory, "holds weights alone, without the optimizer's state"
            )
        if manifest.sharding is not self._sharding:
            raise checkpoint.unusable(
                origin,
                directory,
                f"was saved as {manifest.sharding}, the campaign's engine loads {self._sharding}",
                remedy=f"start from its {checkpoint.HF_DIRECTORY}/ directory instead",
            )
        is_cut = self._sharding is Sharding.RANKS
        if is_cut and manifest.tensor_parallel != self._tensor_parallel:
            raise checkpoint.unusable(
                origin,
                directory,
                f"was saved with tensor_parallel = {manifest.tensor_parallel}, the campaign has "
                f"{self._tensor_parallel}",
                remedy=f"start from its {checkpoint.HF_DIRECTORY}/ directory instead",
            )
        if manifest.has_critic is not self._has_critic:
            held = "holds a critic" if manifest.has_critic else "lacks a critic"
            expected = "trains one" if self._has_critic else "has none"
            raise checkpoint.unusable(origin, directory, f"{held}, and the campaign {expected}")
        checkpoint.verify(directory, manifest)
        self._all(RankCalls.load_checkpoint, directory)
        return manifest

    def open_meetings(self, name: str, num_engine_ranks: int) -> list[Meeting]:
        """Where engines join: a process group with each rank that sends weights."""
        self._require_ranks()
        calls = [a.open_meeting.remote(name, num_engine_ranks) for a in self._actors]
        return [meeting for meeting in self._get(calls) if meeting is not None]

    def meet(self, timeout_s: float) -> None:
        """Wait until the engines have joined; each later transfer may take as long."""
        self._sending(SenderCalls.meet, timeout_s)

    def gather(self, max_bytes: int) -> list[Bucket]:
        """The next bucket of each rank; empty when all is sent."""
        buckets = self._sending(SenderCalls.gather, max_bytes)
        return [bucket for bucket in buckets if bucket is not None]

    def send(self) -> None:
        """Send what was gathered. Raises SendingFailed."""
        self._sending(SenderCalls.send)

    def part(self) -> None:
        """End the groups."""
        self._sending(SenderCalls.close)

    def _sending(self, method: SenderMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        self._require_ranks()
        name = method.__name__
        return self._get([a.sending.remote(name, *args, **kwargs) for a in self._actors])

    def has_ranks(self) -> bool:
        """Whether ranks were started and none has died, also while nothing was asked of them."""
        if not self._actors or self._cluster.is_lost:
            return False
        if not self._processes.live(self._actors):
            self._stop_actors()
        return bool(self._actors)

    def check(self) -> None:
        """Raises TrainerLost when the cluster under the ranks has ended. From any thread."""
        self._cluster.check()

    def shutdown(self) -> None:
        """Stop the ranks, and Ray if this driver started it."""
        self._stop_actors()
        self._cluster.shutdown()

    def _all(self, method: RankMethod[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Call every rank; arguments travel once."""
        self._require_ranks()
        name, shared = method.__name__, [ray.put(argument) for argument in args]
        return self._get([a.call.remote(name, *shared, **kwargs) for a in self._actors])

    def _on_batch(
        self, method: BatchMethod[P, T], batch: BatchFile, *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """Call every rank with the batch, which all of them map."""
        self._require_ranks()
        self._get([a.open_batch.remote(batch) for a in self._actors])
        name = method.__name__
        return self._get([a.call_on_batch.remote(name, *args, **kwargs) for a in self._actors])

    def _require_ranks(self) -> None:
        self.check()
        if not self._actors:
            raise TrainerLost("no ranks are running", remedy="start the trainer, then load")

    def _get(self, calls: list[Any]) -> list[Any]:
        """Wait for all ranks, or for the end or silence of one of them or of the cluster."""
        # Until it has started a rank is busy with imports, and cannot answer.
        pulse = RankPulse(self._actors if self._pids else [])
        while True:
            try:
                return ray.get(calls, timeout=POLL_S)
            except GetTimeoutError:
                try:
                    self.check()
                except TrainerLost:
                    self._actors, self._pids = [], []
                    self.background.forget()
                    raise
                if silent := pulse.silent():
                    self._cluster.end(self._pids)  # they would not follow Ray's own request
                    self._stop_actors()
                    raise TrainerLost(
                        f"rank {', '.join(map(str, silent))} of the trainer has not answered for "
                        f"{rank_processes.SILENCE_S:.0f} s",
                        remedy="the ranks are started again and resume from the newest checkpoint",
                    ) from None
            except RayError:
                raise self._failed(calls) from None

    def _failed(self, calls: list[Any]) -> MainspringError:
        """Why a call failed, in one line; stops ranks that cannot be used any more. An error of the
        domain is raised by all ranks alike and leaves them usable."""
        ends = rank_ends.look(calls, DEATH_NEWS_TIMEOUT_S)
        if (domain_error := ends.domain_error()) is not None:
            return domain_error
        try:
            self.check()
        except TrainerLost as lost:  # the cause, of which the ranks' end is the effect
            failure = lost
        else:
            failure = ends.told(self._logs, self._memory_kills)
        self._stop_actors()
        return failure

    def _stop_actors(self) -> None:
        self.background.forget()
        self._processes.end(self._actors)
        self._actors, self._pids = [], []
