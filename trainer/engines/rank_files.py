"""A shard's checkpoint as the plain engine writes it: one file for each tensor-parallel rank.

It is loaded under the same `tensor_parallel`. Copies of the model write nothing.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from trainer.engines.checkpoint import Sharding, rank_file
from trainer.engines.protocol import EnterPhase, StepOptimizer
from trainer.model.processes import Processes
from trainer.model.weights import Weights


class RankFiles:
    sharding = Sharding.RANKS

    def __init__(
        self,
        weights: Weights,
        processes: Processes,
        file_of: Callable[[Path, int], Path] = rank_file,
    ) -> None:
        """`file_of`: from a checkpoint's directory and a tensor-parallel rank."""
        self._weights = weights
        self._processes = processes
        self._file_of = file_of

    def save(self, directory: Path, phase: str | None, optimizer: StepOptimizer | None) -> None:
        if not self._processes.is_first_copy:
            return
        torch.save(
            {
                "model": self._weights.named(),
                "phase": phase,
                "optimizer": optimizer.state_dict() if optimizer else None,
            },
            self._file_of(directory, self._processes.tp_rank),
        )

    def load(self, directory: Path, enter: EnterPhase) -> None:
        file = self._file_of(directory, self._processes.tp_rank)
        saved = torch.load(file, map_location=self._processes.device, weights_only=True)
        self._weights.take(saved["model"])
        if saved["phase"] is not None:
            enter(saved["phase"]).load_state_dict(saved["optimizer"])
