"""The critic's model beside the mcore engine: its own gradient buffer and distributed optimizer.
Its pipeline stages are the policy's, with the head on the last one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.checkpoint import CRITIC
from trainer.engines.mcore_module import McoreModule
from trainer.engines.mcore_optimizer import McoreOptimizer
from trainer.engines.protocol import ShardWeights
from trainer.engines.sharded_files import ShardedFiles
from trainer.model.processes import Processes
from trainer.model.value_model import begin_as, build_value_model
from trainer.values.protocol import ValueLoss


class McoreValueEngine:
    """See protocol.ValueEngine."""

    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self.model, self.weights, _ = build_value_model(model_dir, config.trainer, processes)
        self.files = ShardedFiles(self.model, CRITIC)
        self._module = McoreModule(self.model, config.trainer, processes)

    def begin_as(self, policy: ShardWeights) -> None:
        begin_as(self.weights, policy)

    def optimizer(self, config: OptimizerConfig) -> McoreOptimizer:
        return self._module.optimizer(config)

    def values(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        return self._module.rows(sequences)

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: ValueLoss) -> None:
        self._module.zero_gradients()
        self._module.run(
            sequences, lambda share, outputs: loss(share, outputs[0]), forward_only=False
        )
