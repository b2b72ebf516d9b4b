"""The driver: one object that owns a campaign's ranks and moves them together.

Every method blocks; an activity calls it from a thread, one call at a time. Ranks are Ray actors
of this process: they die with it, also by SIGKILL, and nothing but checkpoints survives. With more
than one host, checkpoint directories must be on a file system all of them share.
Imports neither torch nor Megatron: those load in the actors.
"""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from mainspring.config import CampaignConfig
from mainspring.errors import MainspringError, ModelError, ServiceError
from mainspring.samples import Sample
from mainspring.training import StepMetrics
from trainer import checkpoint
from trainer.actor import RankActor
from trainer.sequences import WeightedSequence

LOCAL = "local"
"""Ray's word for a cluster of its own inside this process tree."""
SOCKET_ROOT = "/tmp"
"""Ray puts Unix sockets there, whose paths the kernel cuts at 107 bytes: TMPDIR may be too long."""
DEATH_NEWS_TIMEOUT_S = 10.0
"""Ray notices the death of a local process at once and that of a host after seconds."""
SHUTDOWN_TIMEOUT_S = 1.0
TEMP_PREFIX = "ms-ray-"
OBJECT_STORE_BYTES = 256 << 20
"""Batches of a local cluster are a few megabytes; Ray would take 30 % of the memory."""
CPU_ENV = {
    # Ranks without a GPU of their own must not all take the first one.
    "CUDA_VISIBLE_DEVICES": "",
    # Megatron decorates functions with torch.compile; on CPU that only costs time.
    "TORCHDYNAMO_DISABLE": "1",
    # Waiting OpenMP threads spin by default, which starves the other ranks of a small machine.
    "OMP_WAIT_POLICY": "PASSIVE",
}


class TrainerLost(ServiceError):
    """A rank died or a call into it failed: the ranks were stopped; start again and load."""


class TrainerDriver:
    def __init__(self, *, address: str = LOCAL):
        """`address`: a Ray cluster's, or LOCAL to start one."""
        self._address = address
        self._ray_thread: ThreadPoolExecutor | None = None
        self._temp_dir: Path | None = None
        self._tensor_parallel = 1
        self._actors: list[Any] = []

    def start(self, config: CampaignConfig, model_dir: Path) -> None:
        """Make the ranks, each with the weights of `model_dir`. Stops ranks made before."""
        self._stop_actors()
        trainer = config.trainer
        world_size = trainer.tensor_parallel * trainer.data_parallel
        self._connect(config.name)
        # A local cluster is this trainer's alone: there is nothing to account for.
        num_cpus = 0 if self._address == LOCAL else trainer.threads_per_rank
        available = ray.cluster_resources().get("CPU", 0)
        if available < world_size * num_cpus:
            raise ServiceError(
                f"the Ray cluster at {self._address} has {available:.0f} CPUs, the campaign's "
                f"ranks need {world_size * num_cpus}",
                remedy="add a node, or lower trainer.threads_per_rank or the parallel sizes",
            )
        on_gpu = ray.cluster_resources().get("GPU", 0) >= world_size
        threads = {"OMP_NUM_THREADS": str(trainer.threads_per_rank)}
        actor = ray.remote(RankActor).options(
            num_cpus=num_cpus,
            num_gpus=1 if on_gpu else 0,
            runtime_env={"env_vars": threads | ({} if on_gpu else CPU_ENV)},
        )
        self._actors = [actor.remote(rank, world_size) for rank in range(world_size)]
        self._tensor_parallel = trainer.tensor_parallel
        source = model_dir.absolute()
        try:
            host, port = self._get([self._actors[0].open_store.remote()])[0]
            self._get([a.start.remote(config, source, host, port) for a in self._actors])
        except BaseException:
            self._stop_actors()
            raise

    def supervised_step(self, sequences: Sequence[WeightedSequence], scale: float) -> float:
        """One warm-start step at `scale` times the configured rates; returns the loss before."""
        return self._all("supervised_step", list(sequences), scale)[0]

    def train_step(
        self, samples: Sequence[Sample], *, step: int, current_version: int
    ) -> StepMetrics:
        """See `TrainerRank.train_step`."""
        return self._all("train_step", list(samples), step=step, current_version=current_version)[0]

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """[T] of each sample under the current weights; 0 where not sampled."""
        found: dict[int, NDArray[np.float32]] = {}
        for share in self._all("logprobs", list(samples)):
            found |= share
        return [found[index] for index in range(len(samples))]

    def logprob_gap(self, samples: Sequence[Sample], version: int) -> tuple[float, float, int]:
        """Largest and mean |served - recomputed| over tokens of `version`, and their number."""
        parts = [
            np.abs(found - sample.logprobs)[sample.versions == version]
            for found, sample in zip(self.logprobs(samples), samples, strict=True)
        ]
        gaps = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        if not len(gaps):
            return 0.0, 0.0, 0
        return float(gaps.max()), float(gaps.mean()), len(gaps)

    def save(self, directory: Path, *, version: int) -> None:
        """Write a checkpoint with its Hugging Face export (`trainer.checkpoint`), atomically.

        If a complete one is there (an earlier attempt got this far), it is loaded instead: engines
        may serve it already, and the weights in memory must be those.
        """
        directory = directory.absolute()
        if directory.exists():
            found = self.load(directory)
            if found != version:
                raise ModelError(
                    f"checkpoint {directory} holds policy version {found}, expected {version}",
                    remedy="save each version under a directory of its own",
                )
            return
        temporary = checkpoint.begin(directory)
        try:
            self._all("save_checkpoint", temporary)
            self._all("export_hf", temporary / checkpoint.HF_DIRECTORY)
            manifest = checkpoint.Manifest(version=version, tensor_parallel=self._tensor_parallel)
            checkpoint.commit(temporary, directory, manifest)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def load(self, directory: Path) -> int:
        """Take weights and optimizer of a checkpoint; returns its policy version."""
        directory = directory.absolute()
        manifest = checkpoint.read_manifest(directory)
        if manifest.tensor_parallel != self._tensor_parallel:
            raise ModelError(
                f"checkpoint {directory} was saved with tensor_parallel = "
                f"{manifest.tensor_parallel}, the campaign has {self._tensor_parallel}",
                remedy=f"start from its {checkpoint.HF_DIRECTORY}/ directory instead",
            )
        self._all("load_checkpoint", directory)
        return manifest.version

    def shutdown(self) -> None:
        """Stop the ranks, and Ray if this driver started it."""
        self._stop_actors()
        plant = _processes_of(self._temp_dir) if self._temp_dir else []
        if self._ray_thread is not None:
            self._ray_thread.submit(ray.shutdown).result()
            self._ray_thread.shutdown()
            self._ray_thread = None
        # Ray's agents notice the end of their raylet only a minute later.
        for process in psutil.wait_procs(plant, timeout=SHUTDOWN_TIMEOUT_S)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._temp_dir is not None:
            shutil.rmtree(self._temp_dir, ignore_errors=True)
            self._temp_dir = None

    def _connect(self, campaign: str) -> None:
        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {}
        if self._address == LOCAL:
            _remove_leftovers()
            prefix = f"{TEMP_PREFIX}{os.getpid()}-"
            self._temp_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=SOCKET_ROOT))
            options = {
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(self._temp_dir),
            }
        # The kernel kills a local cluster with the thread that started it, not with the process;
        # the caller's thread may end with its call.
        self._ray_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
        connect = self._ray_thread.submit(
            ray.init,
            address=self._address,
            namespace=f"mainspring-{campaign}",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
        connect.result()

    def _all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call every rank; arguments travel once."""
        if not self._actors:
            raise TrainerLost("no ranks are running", remedy="start the trainer, then load")
        shared = [ray.put(argument) for argument in args]
        return self._get([a.call.remote(method, *shared, **kwargs) for a in self._actors])

    def _get(self, calls: list[Any]) -> list[Any]:
        try:
            return ray.get(calls)
        except RayTaskError as error:
            # An error of the domain is raised by all ranks alike and leaves them usable.
            if isinstance(error.cause, MainspringError):
                raise error.cause from None
            # A rank whose peer died fails too, in its collective, and may be heard first.
            died = _some_rank_died(calls)
            self._stop_actors()
            if not died:
                raise
            raise _lost(error) from error
        except RayError as error:
            self._stop_actors()
            raise _lost(error) from error

    def _stop_actors(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


def _lost(error: RayError) -> TrainerLost:
    return TrainerLost(
        f"a rank of the trainer was lost: {error}",
        remedy="start the trainer again and load the last checkpoint",
    )


def _some_rank_died(calls: list[Any]) -> bool:
    for call in calls:
        try:
            ray.get(call, timeout=DEATH_NEWS_TIMEOUT_S)
        except RayActorError:
            return True
        except (RayTaskError, GetTimeoutError):
            continue
    return False


def _processes_of(temp_dir: Path) -> list[psutil.Process]:
    """The local cluster's processes: children that name its directory, and theirs."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile, or a zombie
            if any(str(temp_dir) in argument for argument in child.cmdline()):
                found += [child, *child.children(recursive=True)]
    return found


def _remove_leftovers() -> None:
    """Delete the temporary directories of drivers that were killed."""
    for path in Path(SOCKET_ROOT).glob(f"{TEMP_PREFIX}*-*"):
        pid = path.name.removeprefix(TEMP_PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
