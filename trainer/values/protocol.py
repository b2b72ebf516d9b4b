"""A value engine: the critic's model of one rank, and how its gradients come to be.

As `trainer.engines.protocol`, with a value for each wanted token in place of its log-prob: equal
calls give equal numbers, and all ranks make the same calls. Implemented beside this file; used by
`trainer.step.critic`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.protocol import ShardFiles, ShardWeights, StepOptimizer
from trainer.model.processes import Processes

ValueLoss = Callable[[list[int], Tensor], Tensor]
"""The loss of one micro-batch, a scalar with gradient: from the indices of its sequences, and the
values of their masked tokens, sequence after sequence: [T]."""


class ValueEngine(Protocol):
    @property
    def weights(self) -> ShardWeights:
        """Weights of this rank's shard, the head's too."""
        ...

    @property
    def files(self) -> ShardFiles:
        """Files of this rank's shard; they lie beside the policy's."""
        ...

    def begin_as(self, policy: ShardWeights) -> None:
        """Take the layers that a policy of this step engine has now; the head is zero."""
        ...

    def optimizer(self, config: OptimizerConfig) -> StepOptimizer:
        """A fresh one, for the gradients that `forward_backward` leaves."""
        ...

    def values(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        """Rows of this rank's share, by index: [T] values, 0 where not masked. Without gradient."""
        ...

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: ValueLoss) -> None:
        """Add the gradient of this rank's share, calling `loss` for each of its micro-batches."""
        ...


class ValueEngineClass(Protocol):
    def __call__(
        self, config: CampaignConfig, model_dir: Path, processes: Processes, /
    ) -> ValueEngine:
        """Build the shard with the weights of a Hugging Face directory, its head as zero. Raises
        ModelError."""
        ...
