"""The critic's model beside the plain engine: float32, gradients in the parameters' `.grad`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.checkpoint import critic_file
from trainer.engines.optimizer import PolicyOptimizer
from trainer.engines.protocol import ShardWeights
from trainer.engines.rank_files import RankFiles
from trainer.model.micro_batch import MicroBatch, micro_batches
from trainer.model.packed import unpacked
from trainer.model.processes import Processes
from trainer.model.value_model import begin_as, build_value_model
from trainer.values.protocol import ValueLoss


class PlainValueEngine:
    """See protocol.ValueEngine."""

    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self._parallel = config.trainer
        self._processes = processes
        self.model, self.weights, self._hf = build_value_model(model_dir, config.trainer, processes)
        self.files = RankFiles(self.weights, processes, critic_file)

    def begin_as(self, policy: ShardWeights) -> None:
        begin_as(self.weights, policy)

    def optimizer(self, config: OptimizerConfig) -> PolicyOptimizer:
        return PolicyOptimizer(self.model, self._hf, config, self._processes)

    @torch.no_grad()
    def values(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        by_place: dict[int, NDArray[np.float32]] = {}
        for batch in self._micro_batches(sequences):
            rows = unpacked(batch.through(self.model), [sequences[n].mask for n in batch.share])
            by_place |= zip(batch.share, rows, strict=True)
        return by_place

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: ValueLoss) -> None:
        for batch in self._micro_batches(sequences):
            loss(batch.share, batch.through(self.model)).backward()

    def _micro_batches(self, sequences: Sequence[MaskedSequence]) -> Iterator[MicroBatch]:
        batches = micro_batches(sequences, self._parallel, self._processes)
        return (batch for batch in batches if batch.share)
