"""One pass of the campaign's loss over a batch: its micro-batches, and what they add up to.

The step engine calls it for each of this rank's micro-batches; afterwards `figures` adds up those
of all ranks. Invariants: what does not depend on the loss (entropy, ratio, KL) is measured here,
for every loss alike; a loss that fails on one rank fails on all of them, so that none waits for
another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.config.trainer import TrainerConfig
from mainspring.step_metrics import TAKEN_NAMES
from mainspring.training_faults import AlgorithmBroken, algorithm_broken
from mainspring.trajectories.samples import Sample
from trainer.losses.aggregation import token_weights
from trainer.losses.protocol import ActionTokens, Loss, LossOutput
from trainer.packed import packed
from trainer.processes import Processes


@dataclass(frozen=True, slots=True)
class PassFigures:
    """What one pass over a batch measured, under the weights it began with; over all ranks."""

    loss: float | None
    entropy: float | None
    ratio_mean: float | None
    kl_k1: float | None
    """KL(rollout || current) by its definition: unbiased, may be negative."""
    kl: float | None
    """The same, never negative and of low variance (k3, Schulman 2020)."""
    values: dict[str, float | None]
    """What the loss names."""


class LossPass:
    def __init__(
        self,
        loss: Loss,
        trainer: TrainerConfig,
        samples: Sequence[Sample],
        current_version: int,
        processes: Processes,
    ) -> None:
        """`samples`: of all ranks, each with action tokens."""
        self._loss = loss
        self._what = f"trainer.loss {trainer.loss!r}"
        self._trainer = trainer
        self._samples = samples
        self._current_version = current_version
        self._processes = processes
        self._lengths_N = [sample.num_action_tokens for sample in samples]
        self._weights_N = token_weights(trainer.aggregation, self._lengths_N)
        self._sums = np.zeros(5)
        """Of loss, entropy, ratio, k1 and k3."""
        self._named: dict[str, float] = {}
        self.differences: list[NDArray[np.float32]] = []
        """Recomputed - served, of this rank's tokens of the current version."""

    def __call__(self, share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
        """The loss of one micro-batch, from what its action tokens came to: [T], [T]. `share`:
        which samples. Raises AlgorithmBroken."""
        rows = [self._samples[n] for n in share]
        masks = [row.action_mask for row in rows]
        served = packed([row.logprobs for row in rows], masks, logprobs.device)
        versions = packed([row.versions for row in rows], masks, logprobs.device)
        lengths = [self._lengths_N[n] for n in share]
        repeats = torch.tensor(lengths, device=served.device)
        tokens = ActionTokens(
            logprobs=logprobs,
            entropy=entropy,
            served_logprobs=served,
            advantages=packed([row.advantages for row in rows], masks, logprobs.device),
            weights=served.new_tensor([self._weights_N[n] for n in share]).repeat_interleave(
                repeats
            ),
            num_tokens_N=lengths,
        )
        found = self._checked(tokens)
        with torch.no_grad():
            log_ratio = logprobs - served
            ratio = log_ratio.exp()
            self._sums += (
                found.loss.item(),
                float(entropy.sum()),
                float(ratio.sum()),
                float(-log_ratio.sum()),
                float((ratio - 1 - log_ratio).sum()),
            )
            for name, value in found.sums.items():
                self._named[name] = self._named.get(name, 0.0) + float(value)
            current = versions == self._current_version
            self.differences.append(log_ratio[current].cpu().numpy())
        return found.loss

    def figures(self, problem: AlgorithmBroken | None) -> PassFigures:
        """Over all ranks, which call this together. `problem`: of this rank. Raises the
        AlgorithmBroken of the first rank that has one."""
        heard = self._processes.gather_objects_over_batch((problem, sorted(self._named)))
        for broken, _ in heard:
            if broken is not None:
                raise broken
        # A rank without a micro-batch knows no names.
        names, *others = [found for _, found in heard if found] or [[]]
        if any(found != names for found in others):
            raise algorithm_broken(
                self._what, f"names other sums on other ranks: {names}, {others}"
            )
        mine = [*self._sums, *(self._named.get(name, 0.0) for name in names)]
        sums = torch.tensor(mine, dtype=torch.float64, device=self._processes.device)
        sums = self._processes.sum_over_batch(sums)
        num_tokens = sum(self._lengths_N)
        means = [float(total) / num_tokens if num_tokens else None for total in sums]
        return PassFigures(
            loss=float(sums[0]) if num_tokens else None,
            entropy=means[1],
            ratio_mean=means[2],
            kl_k1=means[3],
            kl=means[4],
            values=dict(zip(names, means[5:], strict=True)),
        )

    def _checked(self, tokens: ActionTokens) -> LossOutput:
        what = self._what
        try:
            found: Any = self._loss(tokens, self._trainer)
        except Exception as error:
            raise algorithm_broken(what, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(found, LossOutput) or not isinstance(found.loss, Tensor):
            raise algorithm_broken(what, f"returned {found!r:.80}, expected a LossOutput")
        if found.loss.ndim or not found.loss.requires_grad:
            raise algorithm_broken(
                what,
                f"returned a loss of shape {list(found.loss.shape)}, expected a scalar with "
                "gradient",
            )
        if self._named and self._named.keys() != found.sums.keys():
            raise algorithm_broken(
                what, f"named the sums {sorted(found.sums)} after {sorted(self._named)}"
            )
        for name, value in found.sums.items():
            if not name.isidentifier() or name in TAKEN_NAMES:
                raise algorithm_broken(
                    what, f"names a sum {name!r}, which is another figure's name or no name"
                )
            if isinstance(value, Tensor) and value.numel() != 1:
                raise algorithm_broken(
                    what,
                    f"gave the sum {name!r} the shape {list(value.shape)}, expected one number",
                )
        return found
