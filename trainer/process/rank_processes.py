"""The Ray actors that ranks run in: their environment and devices, and some that are made ahead;
and whether they answer.

Invariants: actors that were made ahead serve the configuration they were made for, and no other;
they are taken once. Ahead they are made in a cluster of this process alone: elsewhere they would
hold what ranks at work need. Knows nothing of what ranks compute. Used by `trainer.process.driver`.
"""

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from mainspring.algorithms.schedule import Schedule
from mainspring.artifacts import batch_invariance
from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.parallel import Device
from mainspring.training.training_faults import DeviceMissing
from trainer.process.actor import PULSE_GROUP, RankActor
from trainer.process.placement import Placement
from trainer.process.ray_cluster import LOCAL, RayCluster

ANSWER_S = 2.0
SILENCE_S = 180.0
"""Far above what one call into C may hold Python's lock for, as reading a large tensor does."""
CPU_ENV = {
    # Ranks without a GPU of their own must not all take the first one.
    "CUDA_VISIBLE_DEVICES": "",
    # Megatron decorates functions with torch.compile; on CPU that only costs time.
    "TORCHDYNAMO_DISABLE": "1",
    # Waiting OpenMP threads spin by default, which starves the other ranks of a small machine.
    "OMP_WAIT_POLICY": "PASSIVE",
}
CUDA_ENV = {
    # Megatron overlaps communication with computation by the order of one hardware queue.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # A rank whose peer is gone ends its collective, so that the driver hears of it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    # Micro-batches differ in length, and each would leave memory of its own size behind.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


def rank_environment(config: CampaignConfig) -> dict[str, str]:
    """Environment of the ranks' processes: what must be set before torch is imported."""
    environment = {"OMP_NUM_THREADS": str(config.trainer.threads_per_rank)}
    environment |= CUDA_ENV if config.trainer.device is Device.CUDA else CPU_ENV
    if config.schedule is Schedule.REPRODUCIBLE:
        environment |= batch_invariance.environment()
    return environment


class RankProcesses:
    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._ahead: tuple[CampaignConfig, list[Any]] | None = None
        self._imports: list[Any] = []
        """Calls to those that were made ahead."""
        self._placement: Placement | None = None
        """The place in a cluster that others use too."""

    def warm(self, config: CampaignConfig) -> None:
        """Start Ray and processes for ranks, which import what these need; returns before they
        have. Raises DeviceMissing."""
        assert self._cluster.address == LOCAL, "ranks are made ahead in a local cluster alone"
        actors = self._make(config)
        self._ahead = config, actors
        self._imports = [actor.warm.remote(config) for actor in actors]

    def are_warm(self) -> bool:
        """Whether those that were made ahead have imported what they need, or failed to."""
        ended, _ = ray.wait(self._imports, num_returns=len(self._imports), timeout=0)
        return len(ended) == len(self._imports)

    def take(self, config: CampaignConfig) -> list[Any]:
        """An actor for each rank. Raises DeviceMissing and TrainerLost."""
        ahead, self._ahead, self._imports = self._ahead, None, []
        if ahead is not None:
            made_for, actors = ahead
            if made_for == config and self.live(actors):
                return actors
            self.end(actors)
        return self._make(config)

    def live(self, actors: list[Any]) -> bool:
        """Whether none has died."""
        if self._cluster.is_lost:
            return False
        try:
            ray.get([actor.pulse.remote() for actor in actors], timeout=ANSWER_S)
        except GetTimeoutError:
            return (
                True  # silent, not dead: the call that is made next waits for them, and ends them
            )
        except RayError:
            return False
        return True

    def end(self, actors: list[Any]) -> None:
        if not self._cluster.is_lost:  # Ray would wait for the dead servers
            for actor in actors:
                ray.kill(actor)
            if self._placement is not None:
                self._placement.release()
        self._placement = None

    def _make(self, config: CampaignConfig) -> list[Any]:
        trainer, world_size = config.trainer, config.trainer.world_size
        self._cluster.connect(config.name)
        on_gpu = trainer.device is Device.CUDA
        num_gpus = int(ray.cluster_resources().get("GPU", 0))
        # A local cluster is this trainer's alone: there is nothing to account for, or to wait for.
        is_local = self._cluster.address == LOCAL
        if is_local and on_gpu and num_gpus < world_size:
            raise DeviceMissing(
                f"campaign {config.name}: its {world_size} ranks need a GPU each "
                f"(the product of the parallel sizes of [trainer]), this trainer sees {num_gpus}",
                remedy="start `mainspring worker trainer` on a machine with enough GPUs (see "
                "CUDA_VISIBLE_DEVICES), or start a campaign with trainer.device = 'cpu'",
            )
        if not is_local:
            self._placement = Placement(trainer, config.name, self._cluster.address)
        # Ray's overloads lack this option.
        remote = ray.remote(concurrency_groups={PULSE_GROUP: 1})  # pyright: ignore[reportCallIssue]
        return [
            remote(RankActor)
            .options(
                num_cpus=0 if is_local else trainer.threads_per_rank,
                num_gpus=1 if on_gpu else 0,
                runtime_env={"env_vars": rank_environment(config)},
                **(self._placement.options(rank) if self._placement else {}),
            )
            .remote(rank, world_size)
            for rank in range(world_size)
        ]


class RankPulse:
    """Whether ranks answer beside what they compute, in one wait of the driver: a stopped or
    deadlocked process does not."""

    def __init__(self, actors: Sequence[Any]) -> None:
        now = time.monotonic()
        self._actors = actors
        self._pulses = [actor.pulse.remote() for actor in actors]
        self._heard_at = [now for _ in actors]

    def silent(self) -> list[int]:
        """Ranks that have not answered for SILENCE_S. One that died counts as heard: the call that
        the driver waits for tells its death."""
        now = time.monotonic()
        for rank, actor in enumerate(self._actors):
            if ray.wait([self._pulses[rank]], timeout=0)[0]:
                self._heard_at[rank] = now
                self._pulses[rank] = actor.pulse.remote()
        return [rank for rank, heard_at in enumerate(self._heard_at) if now - heard_at > SILENCE_S]
