"""One rank of the trainer: the steps that a shard of the model takes, and its checkpoints.

A plain class: `trainer.actor` runs it in a Ray actor, tests run it in their own process. How a step
is computed is the engine's matter (`trainer.engines`). All ranks get the same calls with the same
arguments; engines pick their shares, deterministically. Invariants: a step that fails leaves
weights and optimizer as they were; equal calls under an equal stamp give equal weights (no dropout,
no random state) in a reproducible campaign, and in any with one thread.
"""

import math
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.algorithms.choice import find_engine, find_loss
from mainspring.algorithms.gap import GapMode, measure
from mainspring.algorithms.schedule import Schedule
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ModelError
from mainspring.stamp import Stamp, machine_stamp
from mainspring.step_metrics import StepMetrics
from mainspring.training_faults import AlgorithmBroken, NonFiniteStep, gap_too_large
from mainspring.trajectories.samples import Sample
from mainspring.trajectories.sequences import MaskedSequence, WeightedSequence
from trainer.engines.protocol import EngineClass, StepOptimizer, WatchedOptimizer
from trainer.gradient_digest import GradientDigest
from trainer.loss_pass import LossPass, PassFigures
from trainer.losses.protocol import Loss
from trainer.optimizer import warm_start_optimizer
from trainer.packed import packed
from trainer.processes import (
    Store,  # pyright: ignore[reportPrivateImportUsage]
    join,
)
from trainer.schedule import lr_scale


class Phase(StrEnum):
    WARM_START = "warm_start"
    """Supervised steps, with the warm start's optimizer."""
    POLICY = "policy"
    """Policy-gradient steps, with the campaign's optimizer."""


class TrainerRank:
    def __init__(
        self,
        config: CampaignConfig,
        model_dir: Path,
        *,
        rank: int = 0,
        store: Store | None = None,
    ):
        """Build the shard and load the weights of `model_dir`. Raises ModelError."""
        self._config = config.trainer
        self._campaign = config.name
        self._is_reproducible = config.schedule is Schedule.REPRODUCIBLE
        self._gap_bounds = config.gap_bounds
        self._loss: Loss = find_loss(self._config)
        torch.set_num_threads(self._config.threads_per_rank)
        self._processes = join(rank, self._config, store)
        make: EngineClass = find_engine(self._config)
        self._engine = make(config, model_dir, self._processes)
        self._weights = self._engine.weights
        self._phase: Phase | None = None
        self._optimizer: StepOptimizer | None = None

    def stamp(self) -> Stamp:
        machine = machine_stamp(torch.__version__, torch.backends.cpu.get_cpu_capability())
        return Stamp(
            **machine.model_dump(),
            micro_batch_tokens=self._config.micro_batch_tokens,
            threads_per_rank=self._config.threads_per_rank,
        )

    def load_hf(self, model_dir: Path) -> None:
        """Take the weights of a Hugging Face directory; the optimizer starts anew."""
        self._weights.load_hf(model_dir)
        self._phase = self._optimizer = None

    def export_hf(self, directory: Path) -> None:
        """Write the weights as a Hugging Face directory; the first rank of all writes."""
        self._weights.export_hf(directory)

    def save_checkpoint(self, directory: Path) -> None:
        """Write this rank's share into an existing directory."""
        phase = None if self._phase is None else self._phase.value
        self._engine.files.save(directory, phase, self._optimizer)

    def load_checkpoint(self, directory: Path) -> None:
        self._phase = self._optimizer = None
        self._engine.files.load(directory, lambda phase: self._enter(Phase(phase)))

    def _enter(self, phase: Phase) -> StepOptimizer:
        """The phase's optimizer; a new phase starts with a fresh one."""
        if self._phase is phase and self._optimizer is not None:
            return self._optimizer
        config, threads = self._config.optimizer, self._config.threads_per_rank
        if phase is Phase.WARM_START:
            if self._config.warm_start is None:
                raise ModelError("a supervised step needs [trainer.warm_start] in the campaign")
            config = warm_start_optimizer(self._config.warm_start, config.name)
            threads = self._config.warm_start.threads_per_rank
        torch.set_num_threads(threads)
        self._phase = phase
        self._optimizer = self._engine.optimizer(config)
        return self._optimizer

    def supervised_step(self, sequences: Sequence[WeightedSequence], scale: float) -> float:
        """One step on weighted next-token loss at `scale` times the warm start's rates."""
        optimizer = self._enter(Phase.WARM_START)
        total_weight = float(sum(sequence.weights[1:].sum() for sequence in sequences))
        if not total_weight > 0:
            raise ValueError("a supervised batch needs a token with a positive weight")
        rows = [sequence.masked() for sequence in sequences]
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._processes.device)

        def weighted(share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
            values, masks = [sequences[n].weights for n in share], [rows[n].mask for n in share]
            weights = packed(values, masks, logprobs.device) / total_weight
            loss = -torch.dot(logprobs, weights)
            loss_sum.add_(loss.item())
            return loss

        self._engine.forward_backward(rows, weighted)
        self._apply(optimizer, scale, f"campaign {self._campaign}, warm start")
        return float(self._processes.sum_over_batch(loss_sum))

    def train_step(
        self, samples: Sequence[Sample], *, step: int, current_version: int
    ) -> StepMetrics:
        """One policy-gradient step, `updates_per_step` updates on its batch; `step` counts from 0.

        Raises LogprobGapTooLarge, and then nothing has moved; NonFiniteStep and AlgorithmBroken,
        after which the weights are those before the failing update.

        Samples whose advantage is zero have no gradient: neither the loss's denominator nor any
        mean over tokens knows them. An entropy bonus is given on the others only. When no sample
        carries advantage, nothing moves. Before anything moves, served log-probs of all tokens of
        `current_version` are compared with those recomputed.
        """
        started = time.monotonic()
        config = self._config
        scale = lr_scale(
            step,
            config.num_steps,
            config.optimizer.warmup_steps,
            config.optimizer.final_lr_fraction,
        )
        kept = [s for s in samples if s.carries_advantage]
        optimizer = self._enter(Phase.POLICY)
        gradient = GradientDigest()
        if self._is_reproducible and isinstance(optimizer, WatchedOptimizer):
            optimizer.watch = gradient.add
        flat = [
            s for s in samples if not s.carries_advantage and (s.versions == current_version).any()
        ]
        unmoved = self._differences(flat, current_version)
        first, differences = self._accumulate(optimizer, kept, current_version)
        last = first
        gap = measure(self._processes.gather_over_batch([*unmoved, *differences]))
        beyond = gap.beyond(self._gap_bounds)
        if beyond and config.gap.mode is GapMode.ENFORCE:
            optimizer.zero_grad()
            where = f"step {step + 1}"
            raise gap_too_large(self._campaign, where, current_version, gap, beyond)
        where = f"campaign {self._campaign}, step {step + 1}"
        grad_norm = self._apply(optimizer, scale, where) if kept else None
        for _ in range(config.updates_per_step - 1 if kept else 0):
            last, _ = self._accumulate(optimizer, kept, current_version)
            self._apply(optimizer, scale, where)
        return StepMetrics(
            loss=first.loss,
            grad_norm=grad_norm,
            entropy=first.entropy,
            ratio_mean=last.ratio_mean,
            kl_k1=last.kl_k1,
            kl=last.kl,
            num_tokens=sum(sample.num_action_tokens for sample in kept),
            num_samples=len(kept),
            lr=config.optimizer.lr * scale,
            logprob_gap_max=gap.max,
            logprob_gap_mean=gap.mean,
            logprob_gap_p999=gap.p999,
            logprob_gap_k3=gap.k3,
            num_gap_tokens=gap.num_tokens,
            seconds=time.monotonic() - started,
            values=last.values,
            gradient=gradient.sha256,
        )

    def _accumulate(
        self, optimizer: StepOptimizer, kept: Sequence[Sample], current_version: int
    ) -> tuple[PassFigures, list[NDArray[np.float32]]]:
        """Add the gradient of the batch's loss; returns what was seen, over all ranks, and the
        differences of my share."""
        seen = LossPass(self._loss, self._config, kept, current_version, self._processes)
        problem: AlgorithmBroken | None = None
        try:
            self._engine.forward_backward(_masked(kept), seen)
        except AlgorithmBroken as error:
            problem = error
        try:
            return seen.figures(problem), seen.differences
        except AlgorithmBroken:
            optimizer.zero_grad()
            raise

    def _differences(
        self, samples: Sequence[Sample], current_version: int
    ) -> list[NDArray[np.float32]]:
        """Recomputed - served, of my share's tokens of the current version."""
        return [
            (recomputed - samples[n].logprobs)[samples[n].versions == current_version]
            for n, recomputed in self.logprobs(samples).items()
        ]

    def logprobs(self, samples: Sequence[Sample]) -> dict[int, NDArray[np.float32]]:
        """By index, [T] log-probs under the current weights, 0 where not sampled; my share."""
        return self._engine.logprobs(_masked(samples))

    def _apply(self, optimizer: StepOptimizer, scale: float, where: str) -> float:
        norm = optimizer.reduce_and_clip()
        if not math.isfinite(norm):
            optimizer.zero_grad()
            raise NonFiniteStep(
                f"{where}: the gradient's norm is {norm}; the weights are those before the step",
                remedy="look for infinite log-probs in its rollouts, then drop the batch with "
                f"`mainspring campaign drop-batch {self._campaign}`, or start a campaign with a "
                "lower learning rate",
            )
        optimizer.step(scale)
        return norm


def _masked(samples: Sequence[Sample]) -> list[MaskedSequence]:
    return [
        MaskedSequence(sample.token_ids, sample.action_mask, is_served=True) for sample in samples
    ]
