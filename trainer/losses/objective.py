"""Shared parts of this folder's losses: a bounded ratio, the entropy bonus, a clip's figures.

Invariant: every finite input gives a finite gradient. Pure.
"""

import torch
from torch import Tensor

from mainspring.config.trainer import TrainerConfig
from trainer.losses.protocol import ActionTokens

MAX_LOG_RATIO = 20.0
"""In nats. exp() of more than 88 is infinite in float32, and autograd multiplies it by 0, also
where a clip holds the loss: not a number. Equals the bound of verl; a token beyond it has no
gradient."""


def bounded(log_ratio: Tensor) -> Tensor:
    """A difference of two log-probs, as far as its exponential is a number."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ratio_of(logprobs: Tensor, others: Tensor) -> Tensor:
    """[T] probability ratios, with the gradient of both."""
    return bounded(logprobs - others).exp()


def loss_of(objective: Tensor, tokens: ActionTokens, trainer: TrainerConfig) -> Tensor:
    """To be made small: from what is to be made large of each token, and the entropy bonus."""
    if trainer.entropy_coef:
        objective = objective + trainer.entropy_coef * tokens.entropy
    return -torch.dot(objective, tokens.weights)


def clip_sums(low: Tensor, high: Tensor) -> dict[str, Tensor | float]:
    """Sums of tokens clipped at each bound."""
    num_low, num_high = low.sum(), high.sum()
    return {
        "clip_fraction": num_low + num_high,
        "clip_fraction_low": num_low,
        "clip_fraction_high": num_high,
    }
