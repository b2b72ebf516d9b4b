"""One rank of the trainer: the steps that a shard of the model takes, and its checkpoints.

A plain class: `trainer.process.actor` runs it in a Ray actor, tests run it in their own process.
How a step is computed is the engine's matter (`trainer.engines`). All ranks get the same calls with
the same arguments; engines pick their shares, deterministically. Invariants: an update that fails
moves nothing; a step that fails in a later mini-batch has moved the weights of the rank, but not of
the campaign: its version counts as lost and is loaded again before anything else; equal calls under
an equal stamp give equal weights (no dropout, no random state) in a reproducible campaign, and in
any with one thread.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mainspring.algorithms.choice import find_engine, find_loss
from mainspring.algorithms.schedule import Schedule
from mainspring.artifacts.stamp import Stamp, machine_stamp
from mainspring.config.campaign import CampaignConfig
from mainspring.errors import ConfigError, ModelError
from mainspring.training.step_metrics import StepMetrics, SupervisedMetrics
from mainspring.trajectories.imitation import weighted
from mainspring.trajectories.samples import Sample, kept_of
from mainspring.trajectories.sequences import WeightedSequence
from trainer.engines.checkpoint import Sharding
from trainer.engines.gradients import GradientDigest
from trainer.engines.off_device import OffDevice
from trainer.engines.optimizer import warm_start_optimizer
from trainer.engines.protocol import (
    BackgroundFiles,
    EngineClass,
    MovableEngine,
    MovableOptimizer,
    StepOptimizer,
    WatchedOptimizer,
)
from trainer.losses.protocol import Loss
from trainer.model.processes import (
    Store,  # pyright: ignore[reportPrivateImportUsage]
    join,
)
from trainer.process.sender import WeightSender
from trainer.step.critic import Critic
from trainer.step.policy_step import PolicyStep, masked
from trainer.step.reference import Reference, exported
from trainer.step.schedule import lr_scale
from trainer.step.step_cost import StepCost
from trainer.step.supervised_step import SupervisedStep


class Phase(StrEnum):
    WARM_START = "warm_start"
    """Supervised steps, with the warm start's optimizer."""
    SUPERVISED = "supervised"
    """Steps of a supervised run, with its optimizer."""
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
        self._campaign = config
        self._is_reproducible = config.schedule is Schedule.REPRODUCIBLE
        self._loss: Loss = find_loss(self._config)
        torch.set_num_threads(self._config.threads_per_rank)
        self._processes = join(rank, self._config, store)
        make: EngineClass = find_engine(self._config)
        self._engine = make(config, model_dir, self._processes)
        self._weights = self._engine.weights
        self.sender = WeightSender(self._weights, self._processes)
        self._cost = StepCost(self._config, model_dir, self._processes.device)
        self._critic: Critic | None = None
        if self._config.critic is not None:
            self._critic = Critic(config, self._config.critic, model_dir, self._processes)
        self._reference: Reference | None = None
        self.keep_reference()
        self._off_device = OffDevice(self._processes.device)
        if self._config.colocate and not isinstance(self._engine, MovableEngine):
            raise ConfigError(
                f"the step engine {self._config.engine_name!r} cannot leave its device",
                remedy="give it the method `held` of trainer.engines.protocol.MovableEngine, or "
                "remove trainer.colocate",
            )
        self._phase: Phase | None = None
        self._optimizer: StepOptimizer | None = None

    def stamp(self) -> Stamp:
        machine = machine_stamp(torch.__version__, torch.backends.cpu.get_cpu_capability())
        return Stamp(
            **machine.model_dump(),
            micro_batch_tokens=self._config.micro_batch_tokens,
            threads_per_rank=self._config.threads_per_rank,
        )

    def be_on_device(self, wanted: bool) -> None:
        """Have weights and moments on the device, or in the host's memory while others have it;
        nothing can be computed then. All calls but this one need them there."""
        if wanted:
            self._off_device.come_back()
            return
        assert isinstance(self._engine, MovableEngine), "checked when the rank was built"
        held = [*self._engine.held(), *(self._critic.held() if self._critic else ())]
        if isinstance(self._optimizer, MovableOptimizer):
            held += self._optimizer.held()
        self._off_device.leave(held)

    def keep_reference(self) -> None:
        """Compare later steps with the weights held now: at first those that it was built with."""
        if self._config.kl.coef:
            self._reference = Reference(self._weights)

    def begin_critic(self) -> None:
        """Start the campaign's critic from the weights held now: those of version 0."""
        assert self._critic is not None, "the campaign has no critic"
        self._critic.begin_as(self._weights)

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
        if self._critic is not None:
            self._critic.save(directory)

    def begin_checkpoint(self, directory: Path) -> None:
        """The same in the background. Raises ConfigError where the engine cannot."""
        phase = None if self._phase is None else self._phase.value
        self._background_files.begin_save(directory, phase, self._optimizer)

    def is_checkpoint_written(self, wait: bool) -> bool:
        """By all ranks."""
        return self._background_files.is_saved(wait=wait)

    def sharding(self) -> Sharding:
        """How the checkpoints that it writes and loads are cut."""
        return self._engine.files.sharding

    @property
    def _background_files(self) -> BackgroundFiles:
        files = self._engine.files
        if not isinstance(files, BackgroundFiles):
            raise ConfigError(
                f"the step engine {self._config.engine_name!r} writes no checkpoint in the "
                "background",
                remedy="set trainer.checkpoint_in_background = false",
            )
        return files

    def load_checkpoint(self, directory: Path) -> None:
        self._phase = self._optimizer = None
        self._engine.files.load(directory, lambda phase: self._enter(Phase(phase)))
        if self._critic is not None:
            self._critic.load(directory)

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
        return self._supervised(optimizer, sequences, scale, "warm start").loss

    def sft_step(
        self, samples: Sequence[Sample], *, step: int, num_steps: int
    ) -> SupervisedMetrics:
        """One of the `num_steps` steps of a supervised run; `step` counts from 0. Raises
        NonFiniteStep, and then nothing has moved."""
        optimizer, config = self._enter(Phase.SUPERVISED), self._config.optimizer
        scale = lr_scale(step, num_steps, config.warmup_steps, config.final_lr_fraction)
        sequences = [weighted(sample) for sample in samples]
        return self._supervised(optimizer, sequences, scale, f"step {step + 1}")

    def _supervised(
        self,
        optimizer: StepOptimizer,
        sequences: Sequence[WeightedSequence],
        scale: float,
        what: str,
    ) -> SupervisedMetrics:
        step = SupervisedStep(self._engine, optimizer, self._processes)
        return step.run(sequences, scale, self._campaign.name, what)

    def train_step(
        self,
        samples: Sequence[Sample],
        *,
        step: int,
        current_version: int,
        config: CampaignConfig | None = None,
    ) -> StepMetrics:
        """One policy-gradient step, `updates_per_step` passes over the `mini_batches` of its batch;
        `step` counts from 0. `config`: the campaign as it is for this step; None: as before.

        Raises LogprobGapTooLarge, and then nothing has moved; NonFiniteStep and AlgorithmBroken,
        after which the weights are those before the failing update.

        Samples whose advantage is zero have no gradient: neither the loss's denominator nor any
        mean over tokens knows them. An entropy bonus and a KL penalty are given on the others only.
        When no sample carries advantage, nothing moves. Before anything moves, served log-probs of
        all tokens of `current_version` are compared with those recomputed.

        A critic makes the advantages before, and is trained after; in its first steps it alone.
        """
        optimizer = self._enter(Phase.POLICY)
        if config is not None:
            self._run_with(config, optimizer)
        gradient = GradientDigest()
        if self._is_reproducible and isinstance(optimizer, WatchedOptimizer):
            optimizer.watch = gradient.add
        policy_step = PolicyStep(
            self._campaign,
            self._engine,
            optimizer,
            self._processes,
            loss=self._loss,
            reference=self._reference,
        )
        self._cost.begin()
        if self._critic is None:
            metrics = policy_step.run(samples, step=step, current_version=current_version)
            pairs = zip(samples, kept_of(samples), strict=True)
            trained = [sample for sample, keep in pairs if keep]
            flops = self._cost.flops(trained)
        else:
            self._critic.watch(gradient.add if self._is_reproducible else None)
            metrics, trained, flops = self._step_with_critic(
                self._critic, policy_step, samples, step, current_version
            )
        return replace(
            metrics,
            gradient=gradient.sha256,
            num_trained_tokens=self._cost.num_trained_tokens(trained),
            flops=flops,
            peak_flops=self._cost.peak_flops,
            rank_memory_peak_gib=self._cost.memory_peak_gib(),
        )

    def _run_with(self, config: CampaignConfig, optimizer: StepOptimizer) -> None:
        """Take what a campaign may change; what it is was decided when the rank was built."""
        if config.trainer != self._config:
            self._loss = find_loss(config.trainer)
        self._config, self._campaign = config.trainer, config
        optimizer.run_with(config.trainer.optimizer)
        if self._critic is not None:
            self._critic.run_with(config.trainer)

    def _step_with_critic(
        self,
        critic: Critic,
        policy_step: PolicyStep,
        samples: Sequence[Sample],
        step: int,
        current_version: int,
    ) -> tuple[StepMetrics, list[Sample], float | None]:
        """The figures of both, the samples that the policy was trained on, and the operations."""
        started = time.monotonic()
        with_advantages, judged = critic.judge(samples)
        assert self._config.critic is not None
        is_warm_up = step < self._config.critic.warmup_steps
        metrics = policy_step.run(
            with_advantages, step=step, current_version=current_version, compares_only=is_warm_up
        )
        figures = critic.train(judged, step)
        of_critic = [valued.sample for valued in judged]
        trained = [] if is_warm_up else of_critic
        both = self._cost.flops(trained), self._cost.critic_flops(of_critic)
        metrics = replace(
            metrics,
            values=metrics.values | figures,
            details=replace(metrics.details, advantages=critic.advantages(judged)),
            seconds=time.monotonic() - started,
        )
        return metrics, trained, None if None in both else sum(flops or 0.0 for flops in both)

    def logprobs(
        self, samples: Sequence[Sample], export: Path | None = None
    ) -> dict[int, NDArray[np.float32]]:
        """By index, [T] log-probs under the current weights, or under those of `export`, a Hugging
        Face directory; 0 where not sampled; my share."""
        with exported(self._weights, export) if export else nullcontext():
            return self._engine.logprobs(masked(samples))
