"""A model of transformers under FSDP: the passes of this rank's share.

Invariants: all ranks make the same number of passes, each through the root; after a pass without
gradient the root is sharded again, since an optimizer made over whole weights would move copies
that FSDP throws away; a loss that fails on one rank lets every rank finish the pass. Imported by
the engines of policies and of critics.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.training.training_faults import AlgorithmBroken
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.fsdp.optimizer import FsdpOptimizer
from trainer.engines.fsdp.packed_model import PackedBody
from trainer.engines.fsdp.sharding import shard
from trainer.model.micro_batch import MicroBatch, micro_batches
from trainer.model.packed import unpacked
from trainer.model.processes import Processes

PassLoss = Callable[..., Tensor]
"""Loss of one micro-batch, a scalar: from the indices of its sequences, and what the model makes of
their wanted tokens, sequence after sequence: [T] each."""


class FsdpModule:
    def __init__(
        self, root: PackedBody, config: CampaignConfig, processes: Processes, named: str
    ) -> None:
        """Shards `root`, whose weights may follow. Raises ModelError."""
        self._parallel = config.trainer
        self._processes = processes
        self._is_reproducible = config.schedule is Schedule.REPRODUCIBLE
        self._layers = shard(root, config.trainer, processes, named)
        # FSDP gives the module another class, with methods that its own one does not declare.
        self._root: Any = root

    def optimizer(self, trained: dict[str, Tensor], config: OptimizerConfig) -> FsdpOptimizer:
        """`trained`: shards by the names that checkpoints have."""
        return FsdpOptimizer(self._root, trained, self._layers, config)

    @torch.no_grad()
    def rows(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        """Rows of this rank's share, by index: [T] of the first that the model makes of each token,
        0 where not masked."""
        out: dict[int, NDArray[np.float32]] = {}
        for batch in self._micro_batches(sequences):
            outputs = self._root(batch)
            if batch.share:
                rows = unpacked(outputs[0], [sequences[n].mask for n in batch.share])
                out |= zip(batch.share, rows, strict=True)
        self._root.reshard()
        return out

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: PassLoss) -> None:
        """Add the gradient of this rank's share. What `loss` raises ends the share."""
        problem: AlgorithmBroken | None = None
        # A rank alone holds whole gradients in any case, unless they leave its device.
        reduces_once = self._processes.dp_size == 1 and not self._parallel.optimizer_offload
        batches = list(self._micro_batches(sequences))
        for batch in batches:
            is_last = batch is batches[-1]
            # Every pass needs the root's own weights from its begin to its end.
            self._root.set_reshard_after_backward(is_last, recurse=False)
            self._root.set_requires_gradient_sync(is_last or not reduces_once)
            outputs = self._root(batch)
            value = torch.stack([output.sum() for output in outputs]).sum() * 0.0
            if batch.share and problem is None:
                try:
                    value = loss(batch.share, *outputs)
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
