"""The plain engine: a Megatron-core model in float32, one backward pass a micro-batch.

For CPUs and small models. The gradients stay in the parameters' `.grad`. In a reproducible campaign
the log-probs of served tokens have the bits of the CPU engine's.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.errors import ModelError
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.off_device import whole_module
from trainer.engines.optimizer import PolicyOptimizer
from trainer.engines.protocol import MicroBatchLoss
from trainer.engines.rank_files import RankFiles
from trainer.model import hf_directory
from trainer.model.families import num_experts
from trainer.model.lora import add_adapters
from trainer.model.micro_batch import MicroBatch, micro_batches
from trainer.model.packed import unpacked
from trainer.model.policy_model import build_model
from trainer.model.processes import Processes
from trainer.model.weights import Weights, first_layer


class PlainEngine:
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self._parallel = config.trainer
        self._processes = processes
        self._is_reproducible = config.schedule is Schedule.REPRODUCIBLE
        self._hf = hf_directory.load_config(model_dir)
        if num_experts(self._hf) and processes.device.type == "cpu":
            raise ModelError(
                f"model {model_dir}: layers of experts cannot be trained on a CPU",
                remedy='set trainer.device = "cuda", or use a dense model',
            )
        self._model = build_model(
            self._hf, self._parallel, processes, temperature=config.policy.temperature or 1.0
        )
        lora = config.trainer.lora
        first = first_layer(self._model, processes)
        add_adapters(self._model, lora, config.seed, first, processes)
        self.weights = Weights(self._model, self._hf, processes, model_dir, lora)
        self.weights.load_hf(model_dir)
        self.files = RankFiles(self.weights, processes)

    def held(self) -> Iterator[torch.Tensor]:
        return whole_module(self._model)

    def optimizer(self, config: OptimizerConfig) -> PolicyOptimizer:
        return PolicyOptimizer(self._model, self._hf, config, self._processes)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        out: dict[int, NDArray[np.float32]] = {}
        for batch in self._micro_batches(sequences):
            logprobs, _ = batch.through(self._model)
            rows = unpacked(logprobs, [sequences[n].mask for n in batch.share])
            out |= zip(batch.share, rows, strict=True)
        return out

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        for batch in self._micro_batches(sequences):
            logprobs, entropy = batch.through(self._model)
            loss(batch.share, logprobs, entropy).backward()

    def _micro_batches(self, sequences: Sequence[MaskedSequence]) -> Iterator[MicroBatch]:
        is_served = bool(sequences) and sequences[0].is_served
        batches = micro_batches(
            sequences,
            self._parallel,
            self._processes,
            as_served=self._is_reproducible and is_served,
        )
        return (batch for batch in batches if batch.share)
