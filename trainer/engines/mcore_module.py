"""A model in Megatron-core's wrappers: data parallelism, the distributed optimizer, schedules.

Invariants: a loss is divided once, by the whole batch's denominator, so neither micro-batches nor
copies of the model divide it again; a pass ends with the gradients of the whole batch, summed over
all copies. Imported by the engines of policies and of critics.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.config.training.parallel import ParallelConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.mcore_optimizer import McoreOptimizer
from trainer.model.micro_batch import MicroBatch, micro_batches, whole
from trainer.model.packed import unpacked
from trainer.model.policy_model import PolicyModel
from trainer.model.processes import Processes

PassLoss = Callable[[list[int], Tensor], Tensor]
"""Loss of one micro-batch, a scalar: from the indices of its sequences, and what the model makes of
their wanted tokens, sequence after sequence: [K, N]."""


class McoreModule:
    def __init__(self, model: PolicyModel, parallel: ParallelConfig, processes: Processes) -> None:
        """`model` with its weights in place."""
        self._parallel = parallel
        self._processes = processes
        self.config = model.config
        self.config.finalize_model_grads_func = _finalize
        module = Float16Module(self.config, model) if self.config.bf16 else model
        self._model = DistributedDataParallel(
            self.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=False
            ),
            module,
        )

    def optimizer(self, config: OptimizerConfig) -> McoreOptimizer:
        return McoreOptimizer(self._model, config, self._parallel)

    def zero_gradients(self) -> None:
        self._model.zero_grad_buffer()

    @torch.no_grad()
    def rows(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        """Rows of this rank's share, by index: [T] of the first that the model makes of each token,
        0 where not masked."""
        out: dict[int, NDArray[np.float32]] = {}

        def keep(share: list[int], outputs: Tensor) -> Tensor:
            rows = unpacked(outputs[0], [sequences[n].mask for n in share])
            out.update(zip(share, rows, strict=True))
            return outputs.sum()

        self.run(sequences, keep, forward_only=True)
        return out

    def run(
        self, sequences: Sequence[MaskedSequence], loss: PassLoss, *, forward_only: bool
    ) -> None:
        """One pass over this rank's share; `loss` is called on the last pipeline stage."""
        batches = list(micro_batches(sequences, self._parallel, self._processes))
        get_forward_backward_func()(
            forward_step_func=partial(self._forward, loss),
            data_iterator=iter(batches),
            model=[self._model],
            num_microbatches=len(batches),
            # Not read: stages tell each other the length of every micro-batch.
            seq_length=self._parallel.micro_batch_tokens,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _forward(
        self, loss: PassLoss, batches: Iterator[MicroBatch], model: Any
    ) -> tuple[Tensor, Any]:
        batch = next(batches)
        return batch.through(model), partial(self._loss, loss, batch)

    def _loss(
        self, loss: PassLoss, batch: MicroBatch, outputs: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        outputs = whole(outputs if outputs.dim() > 1 else outputs[None], batch, self._processes)
        value = loss(batch.share, outputs) if batch.share else outputs.sum()
        return value, torch.zeros((), dtype=torch.int), {}


def _finalize(model: list[Any], num_tokens: object = None, **options: Any) -> None:
    """Sum gradients over all copies, of norms and tied embeddings too; divide by nothing."""
    finalize_model_grads(model, None, **options)
