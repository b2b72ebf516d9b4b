"""The critic's model beside the fsdp engine: the same model of transformers, sharded as the policy.

Its output layer is removed before weights are read, so no rank holds or computes one; a tied one is
the embedding and stays in its place. The value head is a unit of FSDP of its own, since it computes
in float32. Whether the model is computed as transformers computes it was probed by the policy's
engine, which the same rank has made of the same folder. Adapters are the policy's alone: a critic
trains all of its weights.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.lora import LoraConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.model_folder.config_file import where
from mainspring.model_folder.refusals import FolderUse
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.checkpoint import CRITIC
from trainer.engines.fsdp.file_names import FileNames
from trainer.engines.fsdp.files import FsdpFiles
from trainer.engines.fsdp.module import FsdpModule
from trainer.engines.fsdp.optimizer import FsdpOptimizer
from trainer.engines.fsdp.packed_model import PackedBody
from trainer.engines.fsdp.sharding import build_lm
from trainer.engines.fsdp.weights import FsdpWeights
from trainer.engines.protocol import ShardWeights
from trainer.model import hf_directory
from trainer.model.micro_batch import MicroBatch
from trainer.model.processes import Processes
from trainer.values.protocol import ValueLoss

HEAD = "value_head"


class PackedValues(PackedBody):
    """Values, by a head that begins as zero."""

    def __init__(self, lm: Any, named: str, width: int) -> None:
        """`width`: of hidden states."""
        super().__init__(lm, named)
        head = nn.Linear(width, 1)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        lm.add_module(HEAD, head)  # among the model's weights, whose names checkpoints have
        self.exact = (head,)

    def _made_of(self, rows: Tensor, batch: MicroBatch) -> tuple[Tensor, ...]:
        (head,) = self.exact
        return (head(rows.float()).sum(1),)  # of one column; FSDP's roots give no views


class FsdpValueEngine:
    """See protocol.ValueEngine."""

    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        named = where(model_dir)
        lm = build_lm(hf_directory.load_config(model_dir, FolderUse.ANY_MODEL), named)
        width = lm.get_output_embeddings().in_features
        _remove_output(lm)
        names = FileNames(lm, model_dir)
        self._module = FsdpModule(PackedValues(lm, named, width), config, processes, named)
        self.weights = FsdpWeights(lm, model_dir, names, LoraConfig())
        self.weights.load_hf(model_dir)
        self.files = FsdpFiles(self.weights, CRITIC)

    def begin_as(self, policy: ShardWeights) -> None:
        initial = policy.named()
        self.weights.take(
            {
                name: torch.zeros_like(own) if name.startswith(f"{HEAD}.") else initial[name]
                for name, own in self.weights.named().items()
            }
        )

    def optimizer(self, config: OptimizerConfig) -> FsdpOptimizer:
        return self._module.optimizer(self.weights.trained(), config)

    def values(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        return self._module.rows(sequences)

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: ValueLoss) -> None:
        self._module.forward_backward(sequences, loss)


def _remove_output(lm: Any) -> None:
    output = lm.get_output_embeddings()
    if output.weight is lm.get_input_embeddings().weight:
        output.bias = None
        return
    [name] = [name for name, module in lm.named_modules() if module is output]
    holder, _, own_name = name.rpartition(".")
    setattr(lm.get_submodule(holder), own_name, nn.Identity())
