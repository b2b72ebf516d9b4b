"""The fsdp engine: a causal language model of transformers, sharded over data-parallel ranks.

The model's own code computes, so any family is trained that passes the probe; packing, losses and
log-probs are those of the other engines. Invariants: those of `trainer.engines.fsdp.module`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.model_folder.config_file import where
from mainspring.model_folder.refusals import FolderUse
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.fsdp.adapters import add_adapters
from trainer.engines.fsdp.file_names import FileNames
from trainer.engines.fsdp.files import FsdpFiles
from trainer.engines.fsdp.module import FsdpModule
from trainer.engines.fsdp.optimizer import FsdpOptimizer
from trainer.engines.fsdp.packed_model import PackedModel
from trainer.engines.fsdp.probe import probe
from trainer.engines.fsdp.sharding import build_lm
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.engines.off_device import whole_module
from trainer.engines.protocol import MicroBatchLoss
from trainer.model import hf_directory
from trainer.model.processes import Processes


class FsdpEngine:
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        named = where(model_dir)
        lm = build_lm(hf_directory.load_config(model_dir, FolderUse.ANY_MODEL), named)
        names = FileNames(lm, model_dir)
        lora = config.trainer.lora
        if lora.rank:
            add_adapters(lm, config.trainer, config.seed, named)
        self._model = PackedModel(lm, named, config.policy.temperature or 1.0)
        self._module = FsdpModule(self._model, config, processes, named)
        self.weights = FsdpWeights(lm, model_dir, names, lora)
        self.weights.load_hf(model_dir)
        self.files = FsdpFiles(self.weights)
        probe(self._model, config.trainer, processes, named)

    def held(self) -> Iterator[Tensor]:
        return whole_module(self._model)

    def optimizer(self, config: OptimizerConfig) -> FsdpOptimizer:
        return self._module.optimizer(self.weights.trained(), config)

    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        return self._module.rows(sequences)

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        self._module.forward_backward(sequences, loss)
