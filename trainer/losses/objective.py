"""What the losses of this folder share: the entropy bonus, and the figures of a clip. Pure."""

import torch
from torch import Tensor

from mainspring.config.trainer import TrainerConfig
from trainer.losses.protocol import ActionTokens


def loss_of(objective: Tensor, tokens: ActionTokens, trainer: TrainerConfig) -> Tensor:
    """To be made small: from what is to be made large of each token, and the entropy bonus."""
    if trainer.entropy_coef:
        objective = objective + trainer.entropy_coef * tokens.entropy
    return -torch.dot(objective, tokens.weights)


def clip_sums(low: Tensor, high: Tensor) -> dict[str, Tensor | float]:
    """Of which tokens were clipped at which bound."""
    num_low, num_high = low.sum(), high.sum()
    return {
        "clip_fraction": num_low + num_high,
        "clip_fraction_low": num_low,
        "clip_fraction_high": num_high,
    }
