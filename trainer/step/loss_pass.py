"""One pass of the campaign's loss over a mini-batch: its micro-batches, and what they add up to.

The step engine calls it for each of this rank's micro-batches; afterwards `figures` adds up those
of all ranks. Invariants: what does not depend on the loss (correction, KL penalty, entropy, ratio)
is computed here, the same for every loss; when a loss fails on one rank, the pass fails on all
ranks, and no rank waits for another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mainspring.algorithms.choice import LOSSES
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.kl import KlPlace
from mainspring.training.step_metrics import PASS_NAMES, TAKEN_NAMES
from mainspring.training.trained_rollouts import TokenGap, worst
from mainspring.training.training_faults import AlgorithmBroken, algorithm_broken, raise_broken
from trainer.corrections.protocol import Corrected, Correction
from trainer.losses.aggregation import token_weights
from trainer.losses.kl import kl_of, to_come
from trainer.losses.objective import bounded
from trainer.losses.protocol import ActionTokens, Loss, LossOutput
from trainer.model.packed import packed
from trainer.model.processes import Processes
from trainer.step.kept_tokens import KeptTokens
from trainer.step.mini_batch import MiniBatch
from trainer.step.worst_gaps import worst_of


@dataclass(frozen=True, slots=True)
class LossParts:
    """The parts that add up to the loss. None: the loss has no such part, or has it in `policy`."""

    policy: float | None
    kl: float | None
    """The KL penalty."""
    entropy: float | None
    """The entropy bonus, negative."""


NO_PARTS = LossParts(policy=None, kl=None, entropy=None)


@dataclass(frozen=True, slots=True)
class PassSums:
    """Sums over the action tokens of some micro-batches, and the loss's parts over them."""

    loss: float = 0.0
    entropy: float = 0.0
    ratio: float = 0.0
    k1: float = 0.0
    k3: float = 0.0
    policy_part: float = 0.0
    kl_part: float = 0.0
    entropy_part: float = 0.0

    def __add__(self, other: "PassSums") -> "PassSums":
        return PassSums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class PassFigures:
    """Figures of one pass over a batch, under the weights it began with; over all ranks."""

    loss: float | None
    entropy: float | None
    ratio_mean: float | None
    kl_k1: float | None
    """KL(rollout || current) by its definition: unbiased, may be negative."""
    kl: float | None
    """The same, never negative and of low variance (k3, Schulman 2020)."""
    values: dict[str, float | None]
    """Means of the sums that the loss names, and of PASS_NAMES."""
    num_tokens: int
    parts: LossParts


def combined(figures: Sequence[PassFigures]) -> PassFigures:
    """Figures of a pass: the mean of its mini-batches' losses, and means over all tokens."""
    if len(figures) == 1:
        return figures[0]
    num_tokens = sum(figure.num_tokens for figure in figures)

    def mean(values: Iterable[float | None]) -> float | None:
        pairs = zip(values, figures, strict=True)
        terms = [value * figure.num_tokens for value, figure in pairs if value is not None]
        return sum(terms) / num_tokens if terms else None

    def mean_of_parts(values: Iterable[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return sum(present) / len(present) if present else None

    names = figures[0].values if figures else {}
    parts = [figure.parts for figure in figures]
    return PassFigures(
        loss=mean_of_parts(figure.loss for figure in figures),
        entropy=mean(figure.entropy for figure in figures),
        ratio_mean=mean(figure.ratio_mean for figure in figures),
        kl_k1=mean(figure.kl_k1 for figure in figures),
        kl=mean(figure.kl for figure in figures),
        values={name: mean(figure.values[name] for figure in figures) for name in names},
        num_tokens=num_tokens,
        parts=LossParts(
            policy=mean_of_parts(part.policy for part in parts),
            kl=mean_of_parts(part.kl for part in parts),
            entropy=mean_of_parts(part.entropy for part in parts),
        ),
    )


class LossPass:
    def __init__(
        self,
        loss: Loss,
        correction: Correction | None,
        trainer: TrainerConfig,
        batch: MiniBatch,
        current_version: int,
        processes: Processes,
        kept: KeptTokens | None = None,
    ) -> None:
        self._kept = kept
        self._loss = loss
        self._correction = correction
        self._what = f"trainer.loss {trainer.loss!r}"
        self._trainer = trainer
        self._batch = batch
        self._current_version = current_version
        self._processes = processes
        self._lengths_N = [sample.num_action_tokens for sample in batch.samples]
        self._weights_N = token_weights(
            trainer.aggregation,
            self._lengths_N,
            trainer.aggregation_length,
            [(sample.rollout, sample.branch) for sample in batch.samples],
        )
        self._sums = PassSums()
        # A loss of your own may have another bonus, or none.
        self._has_bonus = bool(trainer.entropy_coef) and trainer.loss in LOSSES
        self._named: dict[str, float] = {}
        self.differences: list[NDArray[np.float32]] = []
        """Recomputed - served, of this rank's tokens of the current version."""
        self.worst: tuple[TokenGap, ...] = ()
        """The tokens with the largest of them."""

    def __call__(self, share: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
        """The loss of one micro-batch, from what its action tokens came to: [T], [T]. `share`:
        which samples. Raises AlgorithmBroken."""
        rows = [self._batch.samples[n] for n in share]
        masks = [row.action_mask for row in rows]

        def pack(values: Iterable[NDArray]) -> Tensor:
            return packed([*values], masks, logprobs.device)

        served = pack(row.logprobs for row in rows)
        proximal, reference = (
            None if logprobs_of is None else pack(logprobs_of[n] for n in share)
            for logprobs_of in (self._batch.proximal, self._batch.reference)
        )
        lengths = [self._lengths_N[n] for n in share]
        repeats = torch.tensor(lengths, device=served.device)
        weights = served.new_tensor([self._weights_N[n] for n in share])
        tokens = ActionTokens(
            logprobs=logprobs,
            entropy=entropy,
            served_logprobs=served,
            proximal_logprobs=served if proximal is None else proximal,
            advantages=pack(row.advantages for row in rows),
            weights=weights.repeat_interleave(repeats),
            num_tokens_N=lengths,
        )
        sums: dict[str, float] = {}
        kl = self._trainer.kl
        if reference is not None and kl.where is KlPlace.REWARD:
            penalty = kl_of(tokens.proximal_logprobs, reference, kl)
            penalty = kl.coef * to_come(penalty, lengths)
            tokens = replace(tokens, advantages=tokens.advantages - penalty)
        if self._correction is not None:
            corrected = self._corrected(tokens)
            tokens = replace(tokens, advantages=tokens.advantages * corrected.factors)
            sums["correction_cut"] = float(corrected.is_cut.sum())
        output = self._checked(tokens)
        loss, kl_part = output.loss, 0.0
        if reference is not None:
            divergence = kl_of(logprobs, reference, kl)
            sums["kl_reference"] = float(divergence.detach().sum())
            if kl.where is KlPlace.LOSS:
                term = kl.coef * torch.dot(divergence, tokens.weights)
                loss, kl_part = loss + term, term.item()
        with torch.no_grad():
            difference = logprobs - served
            log_ratio = bounded(difference)
            ratio = log_ratio.exp()
            bonus = 0.0
            if self._has_bonus:
                bonus = -self._trainer.entropy_coef * float(torch.dot(entropy, tokens.weights))
            self._sums += PassSums(
                loss=loss.item(),
                entropy=float(entropy.sum()),
                ratio=float(ratio.sum()),
                k1=float(-log_ratio.sum()),
                k3=float((ratio - 1 - log_ratio).sum()),
                policy_part=output.loss.item() - bonus,
                kl_part=kl_part,
                entropy_part=bonus,
            )
            for name, value in (output.sums | sums).items():
                self._named[name] = self._named.get(name, 0.0) + float(value)
            versions = pack(row.versions for row in rows)
            self.differences.append(difference[versions == self._current_version].cpu().numpy())
            recomputed = logprobs.detach().float().cpu().numpy()
            if self._kept is not None:
                self._kept.add_pass(rows, recomputed, entropy.detach().float().cpu().numpy())
            seen = worst_of(rows, recomputed, self._current_version)
            self.worst = worst([*self.worst, *seen])
        return loss

    def figures(self, problem: AlgorithmBroken | None) -> PassFigures:
        """Over all ranks, which call this together. `problem`: of this rank. Raises the
        AlgorithmBroken of the first rank that has one."""
        of_ranks = self._processes.gather_objects_over_batch((problem, sorted(self._named)))
        for broken, _ in of_ranks:
            if broken is not None:
                raise broken
        # A rank without a micro-batch knows no names.
        names, *others = [named for _, named in of_ranks if named] or [[]]
        if any(named != names for named in others):
            raise algorithm_broken(
                self._what, f"names other sums on other ranks: {names}, {others}"
            )
        own = [*astuple(self._sums), *(self._named.get(name, 0.0) for name in names)]
        of_all = torch.tensor(own, dtype=torch.float64, device=self._processes.device)
        totals = [float(total) for total in self._processes.sum_over_batch(of_all)]
        num_sums = len(fields(PassSums))
        sums, named_totals = PassSums(*totals[:num_sums]), totals[num_sums:]
        num_tokens = sum(self._lengths_N)
        if not num_tokens:
            values = dict.fromkeys(names)
            return PassFigures(None, None, None, None, None, values, num_tokens, NO_PARTS)
        named_means = [total / num_tokens for total in named_totals]
        return PassFigures(
            loss=sums.loss,
            entropy=sums.entropy / num_tokens,
            ratio_mean=sums.ratio / num_tokens,
            kl_k1=sums.k1 / num_tokens,
            kl=sums.k3 / num_tokens,
            values=dict(zip(names, named_means, strict=True)),
            num_tokens=num_tokens,
            parts=self._parts(sums),
        )

    def _parts(self, sums: PassSums) -> LossParts:
        has_penalty = self._batch.reference is not None and self._trainer.kl.where is KlPlace.LOSS
        return LossParts(
            policy=sums.policy_part,
            kl=sums.kl_part if has_penalty else None,
            entropy=sums.entropy_part if self._has_bonus else None,
        )

    @torch.no_grad()
    def _corrected(self, tokens: ActionTokens) -> Corrected:
        """Correct all samples of a micro-batch, each by itself. Raises AlgorithmBroken."""
        assert self._correction is not None
        config = self._trainer.correction
        what = f"trainer.correction.kind {config.kind!r}"
        log_ratio = tokens.proximal_logprobs - tokens.served_logprobs
        parts: list[Corrected] = []
        for part in log_ratio.split(list(tokens.num_tokens_N)):
            try:
                answer: Any = self._correction(part, config)
            except Exception as error:
                raise_broken(what, error)
            if not isinstance(answer, Corrected):
                raise algorithm_broken(
                    what, f"returned a {type(answer).__name__}, expected a Corrected"
                )
            if {answer.factors.shape, answer.is_cut.shape} != {part.shape}:
                raise algorithm_broken(
                    what,
                    f"returned factors of shape {list(answer.factors.shape)} for {len(part)} "
                    "tokens",
                )
            parts.append(answer)
        return Corrected(
            factors=torch.cat([correction.factors for correction in parts]),
            is_cut=torch.cat([correction.is_cut for correction in parts]),
        )

    def _checked(self, tokens: ActionTokens) -> LossOutput:
        what = self._what
        try:
            output: Any = self._loss(tokens, self._trainer)
        except Exception as error:
            raise_broken(what, error)
        if not isinstance(output, LossOutput) or not isinstance(output.loss, Tensor):
            raise algorithm_broken(what, f"returned {output!r:.80}, expected a LossOutput")
        if output.loss.ndim or not output.loss.requires_grad:
            raise algorithm_broken(
                what,
                f"returned a loss of shape {list(output.loss.shape)}, expected a scalar with "
                "gradient",
            )
        before = self._named.keys() - PASS_NAMES
        if self._named and before != output.sums.keys():
            raise algorithm_broken(
                what, f"named the sums {sorted(output.sums)} after {sorted(before)}"
            )
        for name, value in output.sums.items():
            if not name.isidentifier() or name in TAKEN_NAMES | PASS_NAMES:
                raise algorithm_broken(
                    what, f"names a sum {name!r}, which is another figure's name or no name"
                )
            if isinstance(value, Tensor) and value.numel() != 1:
                raise algorithm_broken(
                    what,
                    f"gave the sum {name!r} the shape {list(value.shape)}, expected one number",
                )
        return output
