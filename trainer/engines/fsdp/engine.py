"""The fsdp engine: a causal language model of transformers, sharded over data-parallel ranks.

The model's own code computes, so any family is trained that passes the probe; packing, losses and
log-probs are those of the other engines. Invariants: all ranks make the same number of passes, each
through the root; after a pass without gradient the root is sharded again, since an optimizer made
over whole weights would move copies that FSDP throws away; a loss that fails on one rank lets every
rank finish the pass.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.model_folder.config_file import where
from mainspring.model_folder.refusals import FolderUse
from mainspring.training.training_faults import AlgorithmBroken
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.fsdp.adapters import add_adapters
from trainer.engines.fsdp.file_names import FileNames
from trainer.engines.fsdp.files import FsdpFiles
from trainer.engines.fsdp.optimizer import FsdpOptimizer
from trainer.engines.fsdp.packed_model import PackedModel
from trainer.engines.fsdp.probe import probe
from trainer.engines.fsdp.sharding import build_lm, shard
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.engines.off_device import whole_module
from trainer.engines.protocol import MicroBatchLoss
from trainer.model import hf_directory
from trainer.model.micro_batch import MicroBatch, micro_batches
from trainer.model.packed import unpacked
from trainer.model.processes import Processes


class FsdpEngine:
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self._parallel = config.trainer
        self._processes = processes
        self._is_reproducible = config.schedule is Schedule.REPRODUCIBLE
        named = where(model_dir)
        lm = build_lm(hf_directory.load_config(model_dir, FolderUse.ANY_MODEL), named)
        names = FileNames(lm, model_dir)
        lora = config.trainer.lora
        if lora.rank:
            add_adapters(lm, config.trainer, config.seed, named)
        # FSDP gives the module another class, with methods that its own one does not declare.
        self._model: Any = PackedModel(lm, named, config.policy.temperature or 1.0)
        self._layers = shard(self._model, config.trainer, processes, named)
        self.weights = FsdpWeights(lm, model_dir, names, lora)
        self.weights.load_hf(model_dir)
        self.files = FsdpFiles(self.weights)
        probe(self._model, config.trainer, processes, named)

    def held(self) -> Iterator[Tensor]:
        return whole_module(self._model)

    def optimizer(self, config: OptimizerConfig) -> FsdpOptimizer:
        return FsdpOptimizer(self._model, self.weights.trained(), self._layers, config)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        out: dict[int, NDArray[np.float32]] = {}
        for batch in self._micro_batches(sequences):
            logprobs, _ = self._model(batch)
            if batch.share:
                rows = unpacked(logprobs, [sequences[n].mask for n in batch.share])
                out |= zip(batch.share, rows, strict=True)
        self._model.reshard()
        return out

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        problem: AlgorithmBroken | None = None
        for batch in self._micro_batches(sequences):
            logprobs, entropy = self._model(batch)
            value = (logprobs.sum() + entropy.sum()) * 0.0
            if batch.share and problem is None:
                try:
                    value = loss(batch.share, logprobs, entropy)
                except AlgorithmBroken as broken:  # other ranks wait for this one's gradients
                    problem = broken
            value.backward()
        if problem is not None:
            raise problem

    def _micro_batches(self, sequences: Sequence[MaskedSequence]) -> Iterator[MicroBatch]:
        """As many on every rank; those without sequences keep ranks in step."""
        is_served = bool(sequences) and sequences[0].is_served
        return micro_batches(
            sequences,
            self._parallel,
            self._processes,
            as_served=self._is_reproducible and is_served,
        )
