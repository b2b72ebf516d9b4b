"""PPO's clipped objective with separate bounds, and an entropy bonus.

Sources: PPO, arXiv 1707.06347; "clip higher", DAPO, arXiv 2503.14476. Equals the policy loss of
verl, slime and AReaL without their dual clip.
"""

import torch
from torch import Tensor

from mainspring.config.trainer import TrainerConfig
from trainer.losses.objective import clip_sums, loss_of, ratio_of
from trainer.losses.protocol import ActionTokens, LossOutput


def clip(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports `clip_fraction`, the tokens whose gradient the clip cut off, and of these
    `clip_fraction_low` and `clip_fraction_high`."""
    ratio = ratio_of(tokens.logprobs, tokens.proximal_logprobs)
    objective, sums = clipped(ratio, tokens.advantages, trainer)
    return LossOutput(loss_of(objective, tokens, trainer), sums)


def clipped(
    ratio: Tensor, advantages: Tensor, trainer: TrainerConfig
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """The smaller of ratio and clipped ratio times advantage, and its figures."""
    free = ratio * advantages
    bounded = ratio.clamp(1 - trainer.clip_low, 1 + trainer.clip_high) * advantages
    with torch.no_grad():
        cut = bounded < free
        sums = clip_sums(cut & (ratio < 1), cut & (ratio > 1))
    return torch.minimum(free, bounded), sums
