"""From each rank's gradients to the batch's: reductions over ranks, clipping, and their digest.

Invariants: after `reduce_gradients` every rank holds the gradient of the whole batch for its
shard, and replicated weights hold equal gradients on all ranks; the norm counts every weight of
the model once.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.model.lora import shard_dim
from trainer.model.processes import Processes

CLIP_EPS = 1e-6
"""As torch.nn.utils.clip_grad_norm_ has it, so that both scale by the same factor."""


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """With their names; the others are frozen beneath adapters."""
    return [parameter for parameter in model.named_parameters() if parameter[1].requires_grad]


def is_qk_norm(name: str) -> bool:
    """Replicated over tensor parallelism, but each rank sees only its own heads."""
    return "q_layernorm" in name or "k_layernorm" in name


class GradientDigest:
    """SHA-256 over the gradients of a step: every update's, of every parameter in order of names.

    Part of a policy version's fingerprint. Fed by the optimizer (`WatchedOptimizer.watch`) after
    ranks have added up their gradients and before they are clipped."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._num_updates = 0

    def add(self, model: nn.Module) -> None:
        """The gradients of one update."""
        self._num_updates += 1
        for name, parameter in sorted(trained(model), key=lambda named: named[0]):
            assert parameter.grad is not None, name
            self._sha256.update(name.encode())
            grad = parameter.grad.detach()
            if isinstance(grad, DTensor):  # of a reproducible campaign's one rank
                grad = grad.full_tensor()
            self._sha256.update(grad.contiguous().cpu().numpy().data)

    @property
    def sha256(self) -> str | None:
        """In hex; None where nothing was added."""
        return self._sha256.hexdigest() if self._num_updates else None


def reduce_gradients(model: nn.Module, processes: Processes) -> None:
    """Sum over data parallelism, and the q and k norms' over tensor parallelism too."""
    named = trained(model)
    for _, parameter in named:
        if parameter.grad is None:  # a rank without micro-batches
            parameter.grad = torch.zeros_like(parameter)
    if processes.tp_size > 1:
        _in_one_buffer([p for name, p in named if is_qk_norm(name)], processes.sum_over_tp)
    if processes.dp_size > 1:
        _in_one_buffer([p for _, p in named], processes.sum_over_dp)


def clip_gradients(model: nn.Module, max_norm: float, processes: Processes) -> float:
    """Scale gradients to a global norm of at most `max_norm`; returns the norm before."""
    sharded: list[Tensor] = []
    replicated: list[Tensor] = []
    for name, parameter in trained(model):
        assert parameter.grad is not None, name
        (replicated if shard_dim(name) is None else sharded).append(parameter.grad)
    squared = processes.sum_over_tp(_squared_norm(sharded)) + _squared_norm(replicated)
    norm = squared.sqrt()
    scale = (max_norm / (norm + CLIP_EPS)).clamp(max=1.0)
    for grad in sharded + replicated:
        grad.mul_(scale)
    return float(norm)


def _squared_norm(grads: list[Tensor]) -> Tensor:
    return nn.utils.get_total_norm(grads).square()


def _in_one_buffer(parameters: list[nn.Parameter], reduce: Callable[[Tensor], Tensor]) -> None:
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return
    buffer = reduce(torch.cat([grad.reshape(-1) for grad in grads]))
    for grad, part in zip(grads, buffer.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))
