"""The critic's model beside the mcore engine: its own gradient buffer and distributed optimizer.

Not over pipeline stages: the head would be on the last one alone, beside a copy of the embedding.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.campaign import CampaignConfig
from mainspring.config.optimizer import OptimizerConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.checkpoint import CRITIC
from trainer.mcore_module import McoreModule
from trainer.mcore_optimizer import McoreOptimizer
from trainer.packed import unpacked
from trainer.processes import Processes
from trainer.sharded_files import ShardedFiles
from trainer.value_model import build_value_model
from trainer.values.protocol import ValueLoss


class McoreValueEngine:
    """See protocol.ValueEngine."""

    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self.model, self.weights, _ = build_value_model(model_dir, config.trainer, processes)
        self.files = ShardedFiles(self.model, CRITIC)
        self._module = McoreModule(self.model, config.trainer, processes)

    def optimizer(self, config: OptimizerConfig) -> McoreOptimizer:
        return self._module.optimizer(config)

    def values(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        out: dict[int, NDArray[np.float32]] = {}

        def keep(share: list[int], found: Tensor) -> Tensor:
            rows = unpacked(found[0], [sequences[n].mask for n in share])
            out.update(zip(share, rows, strict=True))
            return found.sum()

        with torch.no_grad():
            self._module.run(sequences, keep, forward_only=True)
        return out

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: ValueLoss) -> None:
        self._module.zero_gradients()
        self._module.run(sequences, lambda share, found: loss(share, found[0]), forward_only=False)
