"""A trainer of supervised runs that computes nothing and notes what it was asked for."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from activities.training.training import Progress
from mainspring.algorithms.gap import LogprobGap
from mainspring.artifacts.stamp import Stamp
from mainspring.training.step_metrics import StepMetrics, SupervisedMetrics, TrainerJob
from mainspring.training.training_faults import NonFiniteStep, TrainerLost
from mainspring.trajectories.samples import Sample


@dataclass
class SftTrainer:
    num_steps: int
    ends_at: int = 0
    """The step at which it is lost, once."""
    broken_at: int = 0
    """The step that fails for good."""
    reached: threading.Event = field(default_factory=threading.Event)
    """Set when `held_at` is reached; it waits there for `let_go`."""
    let_go: threading.Event = field(default_factory=threading.Event)
    held_at: int = 0
    steps: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    saved: list[tuple[int, str]] = field(default_factory=list)

    def prepare(self, job: TrainerJob, directory: Path, progress: Progress) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    def load(self, job: TrainerJob, checkpoint: Path, version: int) -> None:
        assert checkpoint.name == f"v{version:05d}"
        self.loaded.append(version)

    @property
    def ranks(self) -> Self:
        return self

    @property
    def background(self) -> Self:
        return self

    @property
    def version(self) -> int | None:
        return None

    def has_ranks(self) -> bool:
        return True

    def train_step(self, samples: list[Sample], step: int) -> StepMetrics:
        raise AssertionError("no policy-gradient step here")

    def supervised_step(
        self, samples: list[Sample], step: int, num_steps: int
    ) -> SupervisedMetrics:
        assert num_steps == self.num_steps
        if step == self.ends_at:
            self.ends_at = 0
            raise TrainerLost("a rank was lost")
        if step == self.broken_at:
            raise NonFiniteStep(f"step {step}: the gradient is not a number", remedy="lower it")
        if step == self.held_at:
            self.reached.set()
            assert self.let_go.wait(60)
        self.steps.append((step, tuple(sample.rollout for sample in samples)))
        return SupervisedMetrics(loss=1 / step, grad_norm=0.5, lr_scale=0.1)

    def save(self, job: TrainerJob, directory: Path, version: int, batch: str) -> None:
        directory.mkdir(parents=True)
        self.saved.append((version, batch))

    def logprob_gap(self, samples: list[Sample], version: int) -> LogprobGap:
        raise AssertionError("no evaluation here")

    @property
    def stamp(self) -> Stamp:
        return Stamp(
            torch="2.0",
            mkl_cbwr="",
            cpu_capability="",
            cpu="",
            micro_batch_tokens=8192,
            threads_per_rank=1,
        )
