"""A step engine: the model of one rank, and how its gradients come to be.

The rank (`trainer.process.rank`) decides what is computed when; the engine holds the shard of the
model and computes it. Invariants: equal calls give equal numbers; nothing but the optimizer of
`optimizer` and `weights` changes the weights; every rank gets the same calls with the same
sequences and computes its own share, so ranks that work on one model make their collectives in the
same order. Imported by the rank and by the engines.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.optimizer import OptimizerConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.checkpoint import Sharding
from trainer.model.convert import StateDict
from trainer.model.processes import Processes

MicroBatchLoss = Callable[[list[int], Tensor, Tensor], Tensor]
"""The loss of one micro-batch, a scalar with gradient: from the indices of its sequences, and the
log-probs and entropies of their masked tokens, sequence after sequence: [T], [T]."""


class StepOptimizer(Protocol):
    def reduce_and_clip(self) -> float:
        """Make this rank's gradients the batch's; returns their norm before clipping."""
        ...

    def step(self, scale: float) -> None:
        """Move the weights at `scale` times the configured rates, and drop the gradients."""
        ...

    def run_with(self, config: OptimizerConfig) -> None:
        """Take the rates and the largest norm of a configuration; all else is as it was made."""
        ...

    def zero_grad(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class WatchedOptimizer(StepOptimizer, Protocol):
    """One that shows its gradients, for the fingerprint of a reproducible campaign's versions."""

    watch: Callable[[nn.Module], None] | None
    """Called in `reduce_and_clip` with the model, whose `.grad` are the batch's, before they are
    clipped."""


class ShardWeights(Protocol):
    """Weights of a rank's shard; all ranks make the same calls."""

    def named(self) -> dict[str, Tensor]:
        """All that the shard holds."""
        ...

    def take(self, state: dict[str, Tensor]) -> None:
        """Raises ModelError when `state` is not this shard's."""
        ...

    def load_hf(self, model_dir: Path) -> None:
        """Raises ModelError for a directory that does not hold this model."""
        ...

    def export_hf(self, directory: Path) -> None:
        """Write the weights as a new Hugging Face directory on a disk that all ranks share."""
        ...

    def gathered(self) -> Iterator[tuple[int, StateDict]]:
        """Weights as an export has them, on the rank that writes them, elsewhere nothing; each with
        its size."""
        ...

    @property
    def writes(self) -> bool:
        """Whether this rank writes weights of an export."""
        ...


EnterPhase = Callable[[str], StepOptimizer]
"""Makes the optimizer of a phase, which a checkpoint names."""


class ShardFiles(Protocol):
    """How shards are stored in a checkpoint's directory; all ranks make the same calls."""

    sharding: Sharding

    def save(self, directory: Path, phase: str | None, optimizer: StepOptimizer | None) -> None:
        """Write this rank's share of weights and optimizer into an existing directory."""
        ...

    def load(self, directory: Path, enter: EnterPhase) -> None:
        """Take weights and optimizer; `enter` is called when the checkpoint has an optimizer."""
        ...


@runtime_checkable
class BackgroundFiles(ShardFiles, Protocol):
    """Shards that may be written while steps follow."""

    def begin_save(
        self, directory: Path, phase: str | None, optimizer: StepOptimizer | None
    ) -> None:
        """As `save`, of now; returns before it is written. One at a time."""
        ...

    def is_saved(self, *, wait: bool) -> bool:
        """Whether all ranks have written it."""
        ...


class StepEngine(Protocol):
    @property
    def weights(self) -> ShardWeights:
        """Weights of this rank's shard."""
        ...

    @property
    def files(self) -> ShardFiles:
        """Files of this rank's shard."""
        ...

    def optimizer(self, config: OptimizerConfig) -> StepOptimizer:
        """A fresh one, for the gradients that `forward_backward` leaves."""
        ...

    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        """Rows of this rank's share, by index: [T] log-probs under the current weights, 0 where not
        masked. Without gradient."""
        ...

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        """Add the gradient of this rank's share, calling `loss` for each of its micro-batches. What
        `loss` raises ends the share."""
        ...


@runtime_checkable
class MovableOptimizer(StepOptimizer, Protocol):
    """One whose state can leave the device."""

    def held(self) -> Iterator[Tensor]:
        """All that it keeps of weights, as large as they are."""
        ...


@runtime_checkable
class MovableEngine(StepEngine, Protocol):
    """One whose shard can leave the device between two steps (`trainer.colocate`)."""

    def held(self) -> Iterator[Tensor]:
        """Weights and buffers of the shard."""
        ...


class EngineClass(Protocol):
    def __call__(
        self, config: CampaignConfig, model_dir: Path, processes: Processes, /
    ) -> StepEngine:
        """Build the shard with the weights of a Hugging Face directory. Raises ModelError."""
        ...
