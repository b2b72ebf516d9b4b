"""One policy-gradient step: its passes over the batch, one optimizer update for each mini-batch.

Invariants: what the step compares with is computed before anything moves: the log-prob gap, the
proximal log-probs, the reference's; a step that fails leaves the weights as they were before the
failing update; all ranks make the same calls of the engine in the same order. Made by the rank for
each step.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mainspring.algorithms.choice import find_correction
from mainspring.algorithms.gap import GapMode, LogprobGap, measure
from mainspring.config.campaign import CampaignConfig
from mainspring.config.training.algorithm import Proximal
from mainspring.training.step_metrics import StepMetrics
from mainspring.training.trained_rollouts import StepDetails, TokenGap, worst
from mainspring.training.training_faults import AlgorithmBroken, gap_too_large
from mainspring.trajectories.samples import Sample, kept_of
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.protocol import StepEngine, StepOptimizer
from trainer.losses.protocol import Loss
from trainer.model.processes import Processes
from trainer.step.kept_tokens import KeptTokens
from trainer.step.loss_pass import LossPass, PassFigures, combined
from trainer.step.mini_batch import MiniBatch, Recomputed, parts_of
from trainer.step.reference import Reference
from trainer.step.schedule import policy_lr_scale
from trainer.step.update import update
from trainer.step.worst_gaps import worst_of


class PolicyStep:
    def __init__(
        self,
        config: CampaignConfig,
        engine: StepEngine,
        optimizer: StepOptimizer,
        processes: Processes,
        *,
        loss: Loss,
        reference: Reference | None,
    ) -> None:
        """`reference`: where the campaign has a KL penalty."""
        self._config = config
        self._engine = engine
        self._optimizer = optimizer
        self._processes = processes
        self._loss = loss
        self._correction = find_correction(config.trainer)
        self._reference = reference

    def run(
        self,
        samples: Sequence[Sample],
        *,
        step: int,
        current_version: int,
        compares_only: bool = False,
    ) -> StepMetrics:
        """See `TrainerRank.train_step`. `compares_only`: log-probs are compared, and nothing moves,
        as if no sample carried advantage."""
        started = time.monotonic()
        config = self._config.trainer
        scale = policy_lr_scale(
            step,
            config.num_steps,
            config.optimizer.warmup_steps,
            config.optimizer.final_lr_fraction,
            config.critic.warmup_steps if config.critic else 0,
        )
        is_kept = [keep and not compares_only for keep in kept_of(samples)]
        kept = [s for s, keep in zip(samples, is_kept, strict=True) if keep]
        others = [s for s, keep in zip(samples, is_kept, strict=True) if not keep]
        flat = [s for s in others if (s.versions == current_version).any()]
        keep = KeptTokens(samples) if config.keep_recomputed else None
        of_flat = self._recomputed(flat)
        if keep is not None:
            keep.add_recomputed(flat, of_flat)
        differences = _differences(flat, of_flat, current_version)
        gaps = _worst(flat, of_flat, current_version)
        parts = parts_of(kept, config.mini_batches, [sample.rollout for sample in kept])
        proximal: list[Recomputed | None] = [None] * len(parts)
        gap: LogprobGap | None = None
        # The first pass over a single part recomputes its log-probs before anything moves.
        if config.proximal is Proximal.RECOMPUTED or len(parts) != 1:
            recomputed = [self._recomputed(part) for part in parts]
            for part, logprobs_of in zip(parts, recomputed, strict=True):
                differences += _differences(part, logprobs_of, current_version)
                gaps += _worst(part, logprobs_of, current_version)
                if keep is not None:
                    keep.add_recomputed(part, logprobs_of)
            gap = self._gap(differences, step, current_version)
            if config.proximal is Proximal.RECOMPUTED:
                proximal = [*recomputed]
        batches = [
            MiniBatch(*triple)
            for triple in zip(parts, proximal, self._referenced(parts), strict=True)
        ]
        passes: list[PassFigures] = []
        norms: list[float] = []
        for _ in range(config.updates_per_step):
            figures: list[PassFigures] = []
            for batch in batches:
                pass_figures, seen = self._accumulate(batch, current_version, keep)
                if gap is None:
                    gap = self._gap([*differences, *seen.differences], step, current_version)
                    gaps += seen.worst
                assert scale is not None, "the critic's warm-up keeps no sample for the policy"
                norms.append(update(self._optimizer, scale, self._config.name, f"step {step + 1}"))
                figures.append(pass_figures)
            passes.append(combined(figures))
        assert gap is not None
        first, last = passes[0], passes[-1]
        norms = norms[: len(batches)]
        return StepMetrics(
            loss=first.loss,
            grad_norm=sum(norms) / len(norms) if norms else None,
            entropy=first.entropy,
            ratio_mean=last.ratio_mean,
            kl_k1=last.kl_k1,
            kl=last.kl,
            num_tokens=sum(sample.num_action_tokens for sample in kept),
            num_samples=len(kept),
            lr=config.optimizer.lr * scale if norms and scale is not None else None,
            loss_policy=first.parts.policy,
            loss_kl=first.parts.kl,
            loss_entropy=first.parts.entropy,
            logprob_gap_max=gap.max,
            logprob_gap_mean=gap.mean,
            logprob_gap_p50=gap.p50,
            logprob_gap_p99=gap.p99,
            logprob_gap_p999=gap.p999,
            logprob_gap_k3=gap.k3,
            num_gap_tokens=gap.num_tokens,
            seconds=time.monotonic() - started,
            values=last.values,
            details=StepDetails(worst(gaps), kept=keep.by_sample if keep else {}),
        )

    def _accumulate(
        self, batch: MiniBatch, current_version: int, keep: KeptTokens | None = None
    ) -> tuple[PassFigures, LossPass]:
        """Add the gradient of the batch's loss; returns what was seen, over all ranks, and the pass
        with the differences of my share."""
        trainer, correction = self._config.trainer, self._correction
        seen = LossPass(
            self._loss, correction, trainer, batch, current_version, self._processes, keep
        )
        problem: AlgorithmBroken | None = None
        try:
            self._engine.forward_backward(masked(batch.samples), seen)
        except AlgorithmBroken as error:
            problem = error
        try:
            return seen.figures(problem), seen
        except AlgorithmBroken:
            self._optimizer.zero_grad()
            raise

    def _recomputed(self, samples: Sequence[Sample]) -> Recomputed:
        # Without samples no rank waits for a pass of this one.
        return self._engine.logprobs(masked(samples)) if samples else {}

    def _referenced(self, parts: Sequence[Sequence[Sample]]) -> Sequence[Recomputed | None]:
        if self._reference is None:
            return [None] * len(parts)
        with self._reference.in_place():
            return [self._recomputed(part) for part in parts]

    def _gap(
        self, differences: Sequence[NDArray[np.float32]], step: int, current_version: int
    ) -> LogprobGap:
        """The gap over all ranks' differences. Raises LogprobGapTooLarge."""
        gap = measure(self._processes.gather_over_batch([*differences]))
        beyond = gap.beyond(self._config.gap_bounds)
        if beyond and self._config.trainer.gap.mode is GapMode.ENFORCE:
            self._optimizer.zero_grad()
            where = f"step {step + 1}"
            raise gap_too_large(self._config.name, where, current_version, gap, beyond)
        return gap


def masked(samples: Sequence[Sample]) -> list[MaskedSequence]:
    return [
        MaskedSequence(sample.token_ids, sample.action_mask, is_served=True) for sample in samples
    ]


def _differences(
    samples: Sequence[Sample], recomputed: Recomputed, current_version: int
) -> list[NDArray[np.float32]]:
    """Recomputed - served, of my share's tokens of the current version."""
    return [
        (logprobs - samples[n].logprobs)[samples[n].versions == current_version]
        for n, logprobs in recomputed.items()
    ]


def _worst(
    samples: Sequence[Sample], recomputed: Recomputed, current_version: int
) -> list[TokenGap]:
    """The tokens with the largest of these differences."""
    rows = [samples[n] for n in recomputed]
    pairs = zip(rows, recomputed.values(), strict=True)
    of_actions = [logprobs[row.action_mask] for row, logprobs in pairs]
    return worst_of(rows, np.concatenate([np.zeros(0, np.float32), *of_actions]), current_version)
