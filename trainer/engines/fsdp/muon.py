"""Muon over the shards of FSDP: momentum is sharded, and a matrix is whole while it is
orthogonalised.

Invariant: the steps are those of `bundled.muon`; every rank computes the same whole update and
moves its own shard. Imported by `trainer.engines.fsdp.optimizer`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from bundled.muon import orthogonalize
from mainspring.config.training.optimizer import OptimizerConfig
from trainer.engines.fsdp.sharding import local, whole

BUFFER = "momentum_buffer"
AT_ONCE_BYTES = 256 << 20
"""Bytes of the matrices of one shape that are whole at once."""


class ShardedMuon:
    def __init__(self, matrices: dict[str, Tensor], config: OptimizerConfig) -> None:
        """`matrices`: [rows, columns] by name."""
        self._matrices = matrices
        self._momentum = config.muon_momentum
        self._weight_decay = config.weight_decay
        self._buffers = {n: torch.zeros_like(m.detach()) for n, m in matrices.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for names in self._batches():
            updates = orthogonalize(torch.stack([whole(self._update(name)) for name in names]))
            rate = lr * math.sqrt(max(1.0, updates.shape[1] / updates.shape[2]))
            for name, update in zip(names, updates, strict=True):
                matrix = self._matrices[name].detach()
                own = local(matrix)
                own.mul_(1 - lr * self._weight_decay).add_(_shard_of(update, matrix), alpha=-rate)

    def held(self) -> Iterator[Tensor]:
        return map(local, self._buffers.values())

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {name: {BUFFER: buffer} for name, buffer in self._buffers.items()}

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        self._buffers = {name: state[name][BUFFER] for name in self._matrices}

    def _update(self, name: str) -> Tensor:
        """This rank's shard of what is to be orthogonalised."""
        grad = self._matrices[name].grad
        assert grad is not None, name
        buffer = self._buffers[name]
        local(buffer).lerp_(local(grad), 1 - self._momentum)
        own = local(grad).lerp(local(buffer), self._momentum)
        if not isinstance(grad, DTensor):
            return own
        return DTensor.from_local(
            own, grad.device_mesh, grad.placements, shape=grad.shape, stride=grad.stride()
        )

    def _batches(self) -> Iterator[list[str]]:
        by_shape: defaultdict[torch.Size, list[str]] = defaultdict(list)
        for name, matrix in self._matrices.items():
            by_shape[matrix.shape].append(name)
        for shape, names in by_shape.items():
            num = max(1, AT_ONCE_BYTES // (4 * shape.numel()))
            yield from (names[start : start + num] for start in range(0, len(names), num))


def _shard_of(update: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return update
    placed = distribute_tensor(update, like.device_mesh, like.placements, src_data_rank=None)
    return placed.to_local().to(like.to_local().device)
