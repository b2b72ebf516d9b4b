"""Weights and moments of a rank in the host's memory, while others have its device.

Tensors stay the objects that they are, as optimizers, views and FSDP hold them: the memory under
them is freed, and filled again with the same bits. Invariants: nothing may be computed in between;
each memory is moved once, however many tensors share it; what is not on the device stays. On a CPU
the same is done, so that what depends on it is tested there. Used by the rank alone.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, UntypedStorage, nn
from torch.distributed.tensor import DTensor


def whole_module(model: nn.Module) -> Iterator[Tensor]:
    """Its weights and buffers: of a sharded one this rank's part."""
    for tensor in (*model.parameters(), *model.buffers()):
        yield own_part(tensor.detach())


def own_part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def states_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """State that it keeps of weights, without gradients."""
    for state in optimizer.state.values():
        yield from (own_part(value) for value in state.values() if isinstance(value, Tensor))


class OffDevice:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[tuple[UntypedStorage, UntypedStorage]] = []
        """Memory that was freed, and its content."""

    @property
    def num_bytes(self) -> int:
        """Bytes that wait in the host's memory."""
        return sum(kept.nbytes() for _, kept in self._kept)

    def leave(self, tensors: Iterable[Tensor]) -> None:
        """Free the device's memory under them; nothing happens where that was done."""
        if self._kept:
            return
        seen: set[int] = set()
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device.type != self._device.type or not storage.resizable():
                continue
            if not storage.nbytes() or storage.data_ptr() in seen:
                continue
            seen.add(storage.data_ptr())
            is_host = storage.device.type == "cpu"
            self._kept.append((storage, storage.clone() if is_host else storage.cpu()))
        # All copies first: one that fails for want of memory leaves the rank as it was.
        for storage, _ in self._kept:
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def come_back(self) -> None:
        """Take memory for them again; nothing happens where they have it."""
        for storage, kept in self._kept:
            storage.resize_(kept.nbytes())
            storage.copy_(kept)
        self._kept.clear()
