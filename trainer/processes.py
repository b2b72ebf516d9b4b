"""The process groups of a trainer: data parallel x tensor parallel, without pipeline.

Owns torch.distributed and Megatron's parallel state of this process; both are joined once and
live as long as the process.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import (
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
    ProcessGroup,
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from mainspring.config.parallel import Device
from mainspring.training_faults import DeviceMissing

T = TypeVar("T")
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""A rank whose peer died without closing its socket gives up after this long."""


@dataclass(frozen=True, slots=True)
class Processes:
    tp_group: ProcessGroup
    dp_group: ProcessGroup
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

    def sum_over_dp(self, tensor: Tensor) -> Tensor:
        if self.dp_size > 1:
            dist.all_reduce(tensor, group=self.dp_group)
        return tensor

    def sum_over_tp(self, tensor: Tensor) -> Tensor:
        if self.tp_size > 1:
            dist.all_reduce(tensor, group=self.tp_group)
        return tensor

    def gather_over_dp(self, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The values of all data-parallel ranks, in the order of ranks: [N]."""
        mine = np.concatenate([np.zeros(0, np.float32), *parts])
        if self.dp_size == 1:
            return mine
        length = torch.tensor([len(mine)], device=self.device)
        lengths = [torch.empty_like(length) for _ in range(self.dp_size)]
        dist.all_gather(lengths, length, group=self.dp_group)
        longest = max(int(each) for each in lengths)
        padded = torch.zeros(longest, device=self.device)
        padded[: len(mine)] = torch.from_numpy(mine).to(self.device)
        gathered = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(gathered, padded, group=self.dp_group)
        found = [
            part[: int(each)].cpu().numpy() for part, each in zip(gathered, lengths, strict=True)
        ]
        return np.concatenate(found)

    def gather_objects_over_dp(self, mine: T) -> list[T]:
        """One small picklable object of each data-parallel rank, in the order of ranks."""
        found: list[T | None] = [mine] * self.dp_size
        if self.dp_size > 1:
            dist.all_gather_object(found, mine, group=self.dp_group)
        return cast("list[T]", found)


def join(
    rank: int,
    world_size: int,
    tp_size: int,
    store: Store | None = None,
    *,
    device: Device,
) -> Processes:
    """Join the groups; `store` may be None for a single process. Joining again is fine. Raises
    DeviceMissing where torch sees no GPU and one is configured."""
    on_cuda = device is Device.CUDA
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
            world_size=world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp_size)
        if on_cuda:
            # Transformer Engine's attention asks for Megatron's random state even without dropout.
            tensor_parallel.model_parallel_cuda_manual_seed(0)
    where = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    tp_group = parallel_state.get_tensor_model_parallel_group()
    dp_group = parallel_state.get_data_parallel_group()
    assert isinstance(tp_group, ProcessGroup) and isinstance(dp_group, ProcessGroup)
    return Processes(tp_group=tp_group, dp_group=dp_group, device=where)


def open_store(host: str, world_size: int) -> TCPStore:
    """Where the ranks meet, on a free port of this host; one rank opens it."""
    return TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)


def reach_store(host: str, port: int, world_size: int) -> TCPStore:
    return TCPStore(host, port, world_size, is_master=False)
