"""The trainer as the activities meet it: one that holds a version, and its ranks.

Implemented by `trainer.process.backend.RayTrainer` and `trainer.process.driver.TrainerDriver`,
which `workers.trainer` passes in. Invariant: the ranks hold one version of the weights, or none
after a call that failed. All calls block, and are made one at a time from one thread.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mainspring.algorithms.gap import LogprobGap
from mainspring.artifacts.stamp import Stamp
from mainspring.training.sending import Bucket, Meeting
from mainspring.training.step_metrics import StepMetrics, TrainerJob
from mainspring.trajectories.samples import Sample

Progress = Callable[[str], None]


class Background(Protocol):
    """The checkpoint that the ranks write while steps follow."""

    @property
    def version(self) -> int | None:
        """Its version, as far as is known: asks no rank. From any thread."""
        ...

    def finish(self, *, wait: bool) -> int | None:
        """The version whose checkpoint has come to be whole; None without one, or not yet."""
        ...


class Ranks(Protocol):
    @property
    def background(self) -> Background: ...

    @property
    def stamp(self) -> Stamp:
        """Facts that the bits of these ranks depend on; once they were started."""
        ...

    def has_ranks(self) -> bool:
        """Whether ranks run, none of which has died."""
        ...

    def be_on_device(self, wanted: bool) -> None:
        """Have weights on the ranks' devices, or in the hosts' memory while engines have them."""
        ...

    def logprob_gap(
        self, samples: list[Sample], version: int, export: Path | None = None
    ) -> LogprobGap:
        """Served against recomputed log-probs over the tokens of `version`; `export`: the Hugging
        Face directory of its weights, if the ranks hold others."""
        ...


class TrainerBackend(Protocol):
    @property
    def ranks(self) -> Ranks: ...

    def prepare(self, job: TrainerJob, directory: Path, progress: Progress) -> None:
        """Make version 0 at `directory`: base model, warm start. Resumes what a crash left."""
        ...

    def holds(self, job: TrainerJob, version: int) -> bool:
        """Whether the ranks run and hold `version`."""
        ...

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        """Be at `version`, from `checkpoint` unless already there."""
        ...

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        """From version `step` - 1. The ranks hold no version until `save` or `trained_again`."""
        ...

    def save(
        self,
        job: TrainerJob,
        directory: Path,
        version: int,
        batch: str,
        *,
        weights_only: bool = False,
    ) -> None:
        """Make `version` of what the last step left: write its checkpoint and Hugging Face weights,
        or these alone, complete under the final name or not at all. `batch`: digest of what the
        version was trained on."""
        ...

    def begin_checkpoint(self, job: TrainerJob, directory: Path, version: int) -> None:
        """Write the checkpoint of `version`, which is held and was saved with weights alone, in the
        background."""
        ...

    def trained_again(self, job: TrainerJob, version: int, batch: str) -> None:
        """Make `version` of what the last step left; it was saved before, nothing is written."""
        ...


class WeightSource(Protocol):
    """Weights that go straight from the ranks into engines: the driver, as the activity that sends
    them meets it. In this order. Raises SendingFailed and TrainerLost."""

    def open_meetings(self, name: str, num_engine_ranks: int) -> list[Meeting]:
        """Where engines join: a process group with each rank that sends."""
        ...

    def meet(self, timeout_s: float) -> None:
        """Wait until they have joined; each later transfer may take as long."""
        ...

    def gather(self, max_bytes: int) -> list[Bucket]:
        """The next bucket of each rank; empty when all is sent."""
        ...

    def send(self) -> None:
        """Send what was gathered."""
        ...

    def part(self) -> None:
        """End the groups."""
        ...
