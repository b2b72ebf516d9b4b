"""Megatron-core's distributed AdamW behind the step engines' protocol.

Each data- and context-parallel rank moves its share of the weights, and all gather the result; in
bfloat16 it moves float32 copies. Built by `trainer.engines.mcore`.
"""

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig as McoreConfig
from megatron.core.optimizer import get_megatron_optimizer

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.config.training.parallel import ParallelConfig


class McoreOptimizer:
    def __init__(
        self, model: DistributedDataParallel, config: OptimizerConfig, parallel: ParallelConfig
    ) -> None:
        self._model = model
        self._lr = config.lr
        in_bfloat16 = parallel.dtype is Dtype.BFLOAT16
        offload: dict[str, Any] = {}
        if parallel.optimizer_offload:
            offload = {
                "optimizer_cpu_offload": True,
                "optimizer_offload_fraction": 1.0,
                "use_precision_aware_optimizer": True,
            }
        self._settings = McoreConfig(
            optimizer="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=config.max_grad_norm,
            bf16=in_bfloat16,
            params_dtype=torch.bfloat16 if in_bfloat16 else torch.float32,
            use_distributed_optimizer=True,
            **offload,
        )
        self.inner = get_megatron_optimizer(
            self._settings,
            [model],
            config_overrides={},  # decay all weights alike, as the plain engine's AdamW does
        )

    def run_with(self, config: OptimizerConfig) -> None:
        self._lr = config.lr
        self._settings.clip_grad = config.max_grad_norm

    def reduce_and_clip(self) -> float:
        """The pass has summed the gradients over all ranks, and `step` clips them."""
        self.inner.prepare_grads()
        return float(self.inner.get_grad_norm())

    def step(self, scale: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = self._lr * scale
        self.inner.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        self._model.zero_grad_buffer()
        self.inner.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        state: Any = self.inner.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
