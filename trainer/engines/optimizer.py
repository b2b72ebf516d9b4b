"""The optimizer of a rank: AdamW, or Muon on hidden matrices and AdamW on everything else.

Invariant: Muon orthogonalises the matrices Hugging Face has (q, k, v, gate, up each by itself),
so a recipe measured there carries over although Megatron stores them fused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from bundled.muon import Muon
from mainspring.config.section import STORED
from mainspring.config.training.optimizer import OptimizerConfig, OptimizerName, WarmStartConfig
from trainer.engines.gradients import clip_gradients, reduce_gradients, trained
from trainer.engines.off_device import states_of
from trainer.model.convert import GATE_UP, QKV, qkv_rows
from trainer.model.processes import Processes

WARM_START_BETAS = (0.9, 0.98)
WARM_START_MUON_MOMENTUM = 0.95
WARM_START_WEIGHT_DECAY = 0.01


def warm_start_optimizer(config: WarmStartConfig, name: OptimizerName) -> OptimizerConfig:
    """The supervised warm start's optimizer; its schedule is in `trainer.step.schedule`."""
    fields = {
        "name": name,
        "lr": config.lr,
        "muon_lr": config.muon_lr,
        "betas": WARM_START_BETAS,
        "muon_momentum": WARM_START_MUON_MOMENTUM,
        "weight_decay": WARM_START_WEIGHT_DECAY,
    }
    return OptimizerConfig.model_validate(fields, context=STORED)


@dataclass(frozen=True, slots=True)
class _FusedMatrix:
    """A stored weight and the matrices in it, each a leaf tensor that Muon steps."""

    weight: nn.Parameter
    rows: tuple[Tensor, ...]
    parts: tuple[Tensor, ...]

    def scatter(self) -> None:
        assert self.weight.grad is not None
        for rows, part in zip(self.rows, self.parts, strict=True):
            part.copy_(self.weight[rows])
            part.grad = self.weight.grad[rows]

    def gather(self) -> None:
        for rows, part in zip(self.rows, self.parts, strict=True):
            self.weight[rows] = part
            part.grad = None


class PolicyOptimizer:
    """Reduces, clips and applies the gradients a backward pass left in `model`."""

    def __init__(
        self,
        model: nn.Module,
        hf: PretrainedConfig,
        config: OptimizerConfig,
        processes: Processes,
    ):
        self._model = model
        self._config = config
        self._processes = processes
        self.watch: Callable[[nn.Module], None] | None = None
        """See `trainer.engines.protocol.WatchedOptimizer`."""
        self._fused: list[_FusedMatrix] = []
        matrices: list[Tensor] = []
        others: list[nn.Parameter] = []
        for name, parameter in trained(model):
            is_hidden = name.startswith("decoder.layers.") and parameter.ndim == 2
            if config.name is OptimizerName.ADAMW or not is_hidden:
                others.append(parameter)
                continue
            rows = _matrix_rows(name, parameter, hf)
            if not rows:
                matrices.append(parameter)
                continue
            fused = _FusedMatrix(parameter, rows, tuple(parameter.detach()[r] for r in rows))
            self._fused.append(fused)
            matrices += fused.parts
        self._adamw = torch.optim.AdamW(
            others,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        self._muon = None
        if matrices:
            self._muon = Muon(
                matrices,
                lr=config.muon_lr,
                momentum=config.muon_momentum,
                weight_decay=config.weight_decay,
            )

    def run_with(self, config: OptimizerConfig) -> None:
        self._config = config

    def reduce_and_clip(self) -> float:
        """Make this rank's gradients the batch's; returns their norm before clipping."""
        reduce_gradients(self._model, self._processes)
        if self.watch is not None:
            self.watch(self._model)
        return clip_gradients(self._model, self._config.max_grad_norm, self._processes)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Move the weights at `scale` times the configured rates, and drop the gradients."""
        self._adamw.param_groups[0]["lr"] = self._config.lr * scale
        self._adamw.step()
        if self._muon is not None:
            self._muon.param_groups[0]["lr"] = self._config.muon_lr * scale
            for fused in self._fused:
                fused.scatter()
            self._muon.step()
            for fused in self._fused:
                fused.gather()
        self.zero_grad()

    def zero_grad(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def held(self) -> Iterator[Tensor]:
        yield from states_of(self._adamw)
        if self._muon is not None:
            yield from states_of(self._muon)
        for fused in self._fused:
            yield from fused.parts

    def state_dict(self) -> dict[str, Any]:
        return {
            "adamw": self._adamw.state_dict(),
            "muon": self._muon.state_dict() if self._muon is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adamw.load_state_dict(state["adamw"])
        if self._muon is not None:
            self._muon.load_state_dict(state["muon"])


def _matrix_rows(name: str, weight: Tensor, hf: PretrainedConfig) -> tuple[Tensor, ...]:
    """Rows of each matrix fused into `weight`; empty when it is a single one."""
    if name.endswith(f"{QKV}.weight"):
        return tuple(rows.to(weight.device) for rows in qkv_rows(hf).values())
    if name.endswith(f"{GATE_UP}.weight"):
        return torch.arange(weight.shape[0], device=weight.device).chunk(2)
    return ()
