"""The mcore engine: Megatron-core's data parallelism, distributed optimizer and schedules.

For GPUs: tensor, pipeline, context, expert and sequence parallel, bfloat16 with float32 main
weights, recomputation. Invariants: the loss is divided once, by the whole batch's denominator, so
neither micro-batches nor copies of the model divide it again; a pass begins with empty gradients,
and ends with those of the whole batch, summed over all copies; a loss that fails on one rank lets
every rank finish the pass.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.campaign import CampaignConfig
from mainspring.config.optimizer import OptimizerConfig
from mainspring.errors import ModelError
from mainspring.training_faults import AlgorithmBroken
from mainspring.trajectories.sequences import MaskedSequence
from trainer import hf_directory
from trainer.engines.protocol import MicroBatchLoss
from trainer.lora import add_adapters
from trainer.mcore_optimizer import McoreOptimizer
from trainer.micro_batch import MicroBatch, micro_batches, whole
from trainer.model import build_model
from trainer.packed import unpacked
from trainer.processes import Processes
from trainer.sharded_files import ShardedFiles
from trainer.weights import Weights, first_layer


class McoreEngine:
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self._parallel = config.trainer
        self._processes = processes
        if processes.device.type == "cuda" and not HAVE_TE:
            raise ModelError(
                "the engine 'mcore' needs Transformer Engine, which is not installed: without it "
                "Megatron-core 0.16.1 cannot load its own checkpoints",
                remedy="pip install 'mainspring[cuda]', or set trainer.engine = 'plain'",
            )
        hf = hf_directory.load_config(model_dir)
        temperature = config.policy.temperature or 1.0
        model = build_model(hf, self._parallel, processes, temperature=temperature)
        lora = config.trainer.lora
        add_adapters(model, lora, config.seed, first_layer(model, processes))
        self.weights = Weights(model, hf, processes, model_dir, lora)
        self.weights.load_hf(model_dir)
        self.files = ShardedFiles(model)
        self._config = model.config
        self._config.finalize_model_grads_func = _finalize
        module = Float16Module(self._config, model) if self._config.bf16 else model
        self._model = DistributedDataParallel(
            self._config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=True, overlap_grad_reduce=False
            ),
            module,
        )

    def optimizer(self, config: OptimizerConfig) -> McoreOptimizer:
        return McoreOptimizer(self._model, config, self._parallel)

    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        out: dict[int, NDArray[np.float32]] = {}

        def keep(share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
            rows = unpacked(logprobs, [sequences[n].mask for n in share])
            out.update(zip(share, rows, strict=True))
            return logprobs.sum()

        with torch.no_grad():
            self._run(sequences, keep, forward_only=True)
        return out

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        self._model.zero_grad_buffer()
        problems: list[AlgorithmBroken] = []

        def guarded(share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
            try:
                if not problems:
                    return loss(share, logprobs, entropy)
            except AlgorithmBroken as problem:  # the other stages wait for this one's gradients
                problems.append(problem)
            return logprobs.sum() * 0.0

        self._run(sequences, guarded, forward_only=False)
        if problems:
            raise problems[0]

    def _run(
        self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss, *, forward_only: bool
    ) -> None:
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
        self, loss: MicroBatchLoss, batches: Iterator[MicroBatch], model: Any
    ) -> tuple[Tensor, Any]:
        batch = next(batches)
        return batch.through(model), partial(self._loss, loss, batch)

    def _loss(
        self, loss: MicroBatchLoss, batch: MicroBatch, found: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        logprobs, entropy = whole(found, batch, self._processes)
        value = loss(batch.share, logprobs, entropy) if batch.share else found.sum()
        return value, torch.zeros((), dtype=torch.int), {}


def _finalize(model: list[Any], num_tokens: object = None, **options: Any) -> None:
    """Sum gradients over all copies, of norms and tied embeddings too; divide by nothing."""
    finalize_model_grads(model, None, **options)
