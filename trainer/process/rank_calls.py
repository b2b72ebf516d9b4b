"""Methods that the driver calls on each rank: signatures alone, of the classes that load torch.

Invariant: the driver imports this file in their place, and sends a method's name. Implemented by
`trainer.process.rank.TrainerRank` and `trainer.process.sender.WeightSender`; pyright compares them
in `trainer.process.actor`. What a call does is told there.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mainspring.artifacts.stamp import Stamp
from mainspring.config.campaign import CampaignConfig
from mainspring.training.sending import Bucket
from mainspring.training.step_metrics import StepMetrics, SupervisedMetrics
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import WeightedSequence
from trainer.engines.checkpoint import Sharding

P = ParamSpec("P")
T = TypeVar("T")


class RankCalls(Protocol):
    def stamp(self) -> Stamp: ...

    def sharding(self) -> Sharding: ...

    def be_on_device(self, wanted: bool) -> None: ...

    def begin_critic(self) -> None: ...

    def keep_reference(self) -> None: ...

    def supervised_step(self, sequences: Sequence[WeightedSequence], scale: float) -> float: ...

    def sft_step(
        self, samples: Sequence[Sample], *, step: int, num_steps: int
    ) -> SupervisedMetrics: ...

    def train_step(
        self,
        samples: Sequence[Sample],
        *,
        step: int,
        current_version: int,
        config: CampaignConfig | None = None,
    ) -> StepMetrics: ...

    def logprobs(
        self, samples: Sequence[Sample], export: Path | None = None
    ) -> dict[int, NDArray[np.float32]]: ...

    def export_hf(self, directory: Path) -> None: ...

    def save_checkpoint(self, directory: Path) -> None: ...

    def load_checkpoint(self, directory: Path) -> None: ...

    def begin_checkpoint(self, directory: Path) -> None: ...

    def is_checkpoint_written(self, wait: bool) -> bool: ...


class SenderCalls(Protocol):
    def meet(self, timeout_s: float) -> None: ...

    def gather(self, max_bytes: int) -> Bucket | None: ...

    def send(self) -> None: ...

    def close(self) -> None: ...


RankMethod = Callable[Concatenate[RankCalls, P], T]
"""A method of RankCalls, as `RankCalls.train_step`."""
BatchMethod = Callable[Concatenate[RankCalls, Sequence[Sample], P], T]
"""One whose first argument is the batch."""
SenderMethod = Callable[Concatenate[SenderCalls, P], T]


class AllRanks(Protocol):
    def __call__(
        self, method: Callable[Concatenate[RankCalls, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """Call the method on every rank; what each returned."""
        ...
