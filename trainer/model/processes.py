"""The process groups of a trainer: tensor x context x data x pipeline parallel.

Owns torch.distributed and Megatron's parallel state of this process; both are joined once and
live as long as the process. Invariant: the engine `fsdp` does without Megatron, which is loaded for
the others alone.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import (
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
    ProcessGroup,
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from mainspring.config.training.parallel import FSDP, Device, ParallelConfig
from mainspring.training.training_faults import DeviceMissing

T = TypeVar("T")
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""A rank whose peer died without closing its socket gives up after this long."""


@dataclass(frozen=True, slots=True)
class Processes:
    tp_group: ProcessGroup
    pp_group: ProcessGroup
    cp_group: ProcessGroup
    dp_group: ProcessGroup
    expert_group: ProcessGroup
    """The ranks that share the experts of a layer."""
    expert_copies: ProcessGroup
    """The ranks that hold the same experts."""
    batch_group: ProcessGroup
    """The ranks that hold the same part of each layer, one of each tensor-parallel group: together
    they have computed a batch once, or as often as context parallelism shares a sequence."""
    device: torch.device

    @property
    def tp_rank(self) -> int:
        return self.tp_group.rank()

    @property
    def tp_size(self) -> int:
        return self.tp_group.size()

    @property
    def dp_rank(self) -> int:
        return self.dp_group.rank()

    @property
    def dp_size(self) -> int:
        return self.dp_group.size()

    @property
    def is_first_stage(self) -> bool:
        return self.pp_group.rank() == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_group.rank() == self.pp_group.size() - 1

    @property
    def counts(self) -> bool:
        """Whether this rank's sums over tokens count: those of a context-parallel group all see
        every log-prob of its sequences."""
        return self.cp_group.rank() == 0

    @property
    def is_first_copy(self) -> bool:
        """Whether this rank's weights are not a copy of another rank's of lower number."""
        return self.dp_rank == 0 and self.cp_group.rank() == 0

    @property
    def expert_rank(self) -> int:
        return self.expert_group.rank()

    @property
    def is_first_copy_of_experts(self) -> bool:
        return self.expert_copies.rank() == 0

    def sum_over_batch(self, tensor: Tensor) -> Tensor:
        """In place. Ranks that do not count add nothing."""
        if self.batch_group.size() > 1:
            if not self.counts:
                tensor.zero_()
            dist.all_reduce(tensor, group=self.batch_group)
        return tensor

    def sum_over_dp(self, tensor: Tensor) -> Tensor:
        if self.dp_size > 1:
            dist.all_reduce(tensor, group=self.dp_group)
        return tensor

    def sum_over_tp(self, tensor: Tensor) -> Tensor:
        if self.tp_size > 1:
            dist.all_reduce(tensor, group=self.tp_group)
        return tensor

    def gather_over_batch(self, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The values of all ranks that count, in the order of ranks: [N]."""
        values = np.concatenate([np.zeros(0, np.float32), *parts])
        return np.concatenate(self.gather_objects_over_batch(values if self.counts else values[:0]))

    def gather_objects_over_batch(self, own: T) -> list[T]:
        """One small picklable object of each rank of the group, in the order of ranks."""
        objects: list[T | None] = [own] * self.batch_group.size()
        if self.batch_group.size() > 1:
            dist.all_gather_object(objects, own, group=self.batch_group)
        return cast("list[T]", objects)


def join(
    rank: int,
    parallel: ParallelConfig,
    store: Store | None = None,
) -> Processes:
    """Join the groups; `store` may be None for a single process. Joining again is fine. Raises
    DeviceMissing where torch sees no GPU and one is configured."""
    on_cuda = parallel.device is Device.CUDA
    if on_cuda and not torch.cuda.is_available():
        raise DeviceMissing(
            f"rank {rank}: torch {torch.__version__} sees no GPU, and trainer.device is 'cuda'",
            remedy="install a torch with CUDA and check the driver with nvidia-smi, or start a "
            "campaign with trainer.device = 'cpu'",
        )
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl" if on_cuda else "gloo",
            store=store or HashStore(),
            rank=rank,
            world_size=parallel.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    if parallel.engine_name == FSDP:
        return _data_parallel(rank, parallel.world_size, device)
    return _megatron(rank, parallel, device)


def _data_parallel(rank: int, world_size: int, device: torch.device) -> Processes:
    """Every rank makes every group."""
    alone = _group([dist.new_group([each]) for each in range(world_size)][rank])
    everyone = _group(dist.group.WORLD)
    return Processes(
        tp_group=alone,
        pp_group=alone,
        cp_group=alone,
        dp_group=everyone,
        expert_group=alone,
        expert_copies=everyone,
        batch_group=everyone,
        device=device,
    )


def _megatron(rank: int, parallel: ParallelConfig, device: torch.device) -> Processes:
    from megatron.core import parallel_state, tensor_parallel

    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor_parallel,
            pipeline_model_parallel_size=parallel.pipeline_parallel,
            context_parallel_size=parallel.context_parallel,
            expert_model_parallel_size=parallel.expert_parallel,
            expert_tensor_parallel_size=1,
        )
        if device.type == "cuda":
            # Transformer Engine's attention asks for Megatron's random state even without dropout.
            tensor_parallel.model_parallel_cuda_manual_seed(0)
    return Processes(
        tp_group=_group(parallel_state.get_tensor_model_parallel_group()),
        pp_group=_group(parallel_state.get_pipeline_model_parallel_group()),
        cp_group=_group(parallel_state.get_context_parallel_group()),
        dp_group=_group(parallel_state.get_data_parallel_group()),
        expert_group=_group(parallel_state.get_expert_model_parallel_group()),
        expert_copies=_group(parallel_state.get_expert_data_parallel_group()),
        batch_group=_batch_group(rank, parallel),
        device=device,
    )


def _group(group: object) -> ProcessGroup:
    assert isinstance(group, ProcessGroup)
    return group


def _batch_group(rank: int, parallel: ParallelConfig) -> ProcessGroup:
    """Megatron numbers ranks with tensor parallelism first. Every rank makes every group."""
    tp_size = parallel.tensor_parallel
    groups = [
        dist.new_group(list(range(first, parallel.world_size, tp_size))) for first in range(tp_size)
    ]
    return _group(groups[rank % tp_size])


def open_store(host: str, world_size: int) -> TCPStore:
    """Where the ranks meet, on a free port of this host; one rank opens it."""
    return TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)


def reach_store(host: str, port: int, world_size: int) -> TCPStore:
    return TCPStore(host, port, world_size, is_master=False)
