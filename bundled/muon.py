"""Muon in float32, all matrices of a shape at once.

The algorithm of `torch.optim.Muon` with its defaults: Nesterov momentum, five quintic Newton-Schulz
steps (Keller Jordan, https://kellerjordan.github.io/posts/muon/). Torch's own works in bfloat16,
one matrix after the other, which on a CPU without native bfloat16 costs several times more than
the float32 product of a batch. Imported by trainer.engines.optimizer.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)
NUM_ITERATIONS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Steps matrices [rows, columns]; state per matrix: its momentum buffer."""

    def __init__(
        self, matrices: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            by_shape: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for shape, matrices in by_shape.items():
                updates = orthogonalize(
                    torch.stack([self._update(m, group["momentum"]) for m in matrices])
                )
                rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _update(self, matrix: Tensor, momentum: float) -> Tensor:
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        buffer = state["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(buffer, momentum)


def orthogonalize(matrices: Tensor, coefficients: Sequence[float] = COEFFICIENTS) -> Tensor:
    """[N, rows, columns] to nearly orthogonal matrices of the same singular vectors."""
    a, b, c = coefficients
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
