"""The trainer as the activities meet it.

Implemented by `trainer.process.backend.RayTrainer`, which `workers.trainer` passes in. Invariant:
it holds one version of the weights, or none after a call that failed.
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


class TrainerBackend(Protocol):
    """Blocking calls, one at a time, from one thread."""

    def prepare(self, job: TrainerJob, directory: Path, progress: Progress) -> None:
        """Make version 0 at `directory`: base model, warm start. Resumes what a crash left."""
        ...

    def holds(self, job: TrainerJob, version: int) -> bool:
        """Whether the ranks run and hold `version`."""
        ...

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        """Be at `version`, from `checkpoint` unless already there."""
        ...

    def is_ready(self) -> bool:
        """Whether ranks run, none of which has died."""
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
        """Save what the last step made as `version`: its checkpoint and Hugging Face weights, or
        these alone, complete under the final name or not at all. `batch`: digest of what the
        version was trained on."""
        ...

    def begin_checkpoint(self, job: TrainerJob, directory: Path, version: int) -> None:
        """Write the checkpoint of `version`, which is held and was saved with weights alone, while
        steps follow."""
        ...

    def finish_checkpoint(self, *, wait: bool) -> int | None:
        """The version whose checkpoint has come to be whole; None without one, or not yet."""
        ...

    def version_being_written(self) -> int | None:
        """By `begin_checkpoint`, as far as is known: asks no rank. From any thread."""
        ...

    def trained_again(self, job: TrainerJob, version: int, batch: str) -> None:
        """Call the last step's weights `version`, which was saved before; nothing is written."""
        ...

    def logprob_gap(
        self, samples: list[Sample], version: int, export: Path | None = None
    ) -> LogprobGap:
        """Served against recomputed log-probs over the tokens of `version`; `export`: the Hugging
        Face directory of its weights, if the ranks hold others."""
        ...

    def stamp(self) -> Stamp:
        """Facts that the bits of this trainer depend on; after `prepare` or `load`."""
        ...


class WeightSource(Protocol):
    """Weights that go straight from the ranks into engines: the backend, as the activity that sends
    them meets it. Blocking calls in the backend's thread, in this order. Raises SendingFailed and
    TrainerLost."""

    def holds(self, job: TrainerJob, version: int) -> bool: ...

    def open_meetings(self, name: str, num_engine_ranks: int) -> list[Meeting]:
        """Where engines join: a process group with each rank that sends."""
        ...

    def meet(self, timeout_s: float) -> None:
        """Wait until they have joined; each later transfer may take as long."""
        ...

    def gather(self, max_bytes: int) -> list[Bucket]:
        """Gather what each rank sends next; empty when all is sent."""
        ...

    def send(self) -> None:
        """Send what was gathered."""
        ...

    def part(self) -> None:
        """End the groups."""
        ...
