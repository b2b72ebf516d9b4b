"""A policy loss: what the tokens of one micro-batch cost, and what there is to report about them.

Invariants: no model, no process group, no device. Every token's weight in the batch's mean is fixed
(`trainer.losses.aggregation`) before the batch is cut into micro-batches, so the parts' losses and
gradients add up to the batch's, however it is cut and over however many ranks. Named sums add up
likewise; the step's figure is their total divided by the number of tokens, under the same name.
Imported by the losses and by `trainer.step.loss_pass`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from mainspring.config.trainer import TrainerConfig


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """The action tokens of a micro-batch's samples, one sample after the other. All are [T]."""

    logprobs: Tensor
    """Under the current weights; with gradient."""
    entropy: Tensor
    """Entropy of the distributions they were taken from; with gradient."""
    served_logprobs: Tensor
    """As the engine sampled them, in every update on the batch."""
    proximal_logprobs: Tensor
    """Denominator of the ratio (`trainer.proximal`): the served ones, or those recomputed under the
    weights that the step began with."""
    advantages: Tensor
    """After [trainer.correction], and after a KL penalty in the reward."""
    weights: Tensor
    """Weight of each token in the batch's loss: `trainer.aggregation`."""
    num_tokens_N: Sequence[int]
    """How many of the T tokens each sample has; they add up to T."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    loss: Tensor
    """Scalar with gradient: the sum over the tokens, each times its weight."""
    sums: dict[str, Tensor | float] = field(default_factory=dict)
    """By name, of figures to report: sums over the tokens. Every call gives the same names."""


class Loss(Protocol):
    def __call__(self, tokens: ActionTokens, trainer: TrainerConfig, /) -> LossOutput: ...
