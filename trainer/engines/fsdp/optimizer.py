"""AdamW, or Muon on the matrices of layers and AdamW on all else, over the shards of FSDP.

Each rank moves its own shards, in float32. Invariants: gradients are summed over ranks before;
their norm is of the whole model and clips as torch's does; state has the names of parameters, so a
checkpoint does not depend on the ranks. Imported by `trainer.engines.fsdp.engine`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mainspring.config.training.optimizer import OptimizerConfig, OptimizerName
from trainer.engines.fsdp.muon import ShardedMuon
from trainer.engines.fsdp.sharding import local, whole
from trainer.engines.gradients import CLIP_EPS
from trainer.engines.off_device import states_of

MOMENTS = ("exp_avg", "exp_avg_sq")


class FsdpOptimizer:
    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, Tensor],
        layers: tuple[str, ...],
        config: OptimizerConfig,
    ) -> None:
        """`parameters`: the trained shards of `model` by the names that checkpoints have;
        `layers`: how those of layers begin."""
        self._model = model
        self._parameters = parameters
        self._config = config
        self.watch: Callable[[nn.Module], None] | None = None
        """See `trainer.engines.protocol.WatchedOptimizer`."""
        matrices: dict[str, Tensor] = {}
        if config.name is OptimizerName.MUON:
            matrices = {n: p for n, p in parameters.items() if p.ndim == 2 and n.startswith(layers)}
        self._others = {n: p for n, p in parameters.items() if n not in matrices}
        self._muon = ShardedMuon(matrices, config)
        self._adamw = torch.optim.AdamW(
            self._others.values(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    def run_with(self, config: OptimizerConfig) -> None:
        self._config = config

    @torch.no_grad()
    def reduce_and_clip(self) -> float:
        """The backward passes have summed the gradients over all ranks."""
        if self.watch is not None:
            self.watch(self._model)
        grads = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = whole(nn.utils.get_total_norm(grads))
        scale = (self._config.max_grad_norm / (norm + CLIP_EPS)).clamp(max=1.0)
        for grad in grads:
            own = local(grad)
            own.mul_(scale.to(own.device))
        return float(norm)

    def step(self, scale: float) -> None:
        """Move the weights at `scale` times the configured rates, and drop the gradients."""
        self._adamw.param_groups[0]["lr"] = self._config.lr * scale
        self._adamw.step()
        self._muon.step(self._config.muon_lr * scale)
        self.zero_grad()

    def zero_grad(self) -> None:
        self._model.zero_grad(set_to_none=True)

    def held(self) -> Iterator[Tensor]:
        yield from states_of(self._adamw)
        yield from self._muon.held()

    def state_dict(self) -> dict[str, Any]:
        """State by parameter; of one that never moved, that of a fresh optimizer."""
        of_others = {name: self._state(parameter) for name, parameter in self._others.items()}
        return of_others | self._muon.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self._others.items():
            self._adamw.state[parameter] = dict(state[name])
        self._muon.load_state_dict(state)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self._adamw.state.get(parameter)
        if state:
            return dict(state)
        fresh = {name: torch.zeros_like(parameter.detach()) for name in MOMENTS}
        return fresh | {"step": torch.zeros((), dtype=torch.float32)}
