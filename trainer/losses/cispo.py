"""Clipped importance weights: REINFORCE in which no token loses its gradient.

The ratio is clipped and has no gradient; the log-prob has. Source: CISPO, MiniMax-M1,
arXiv 2506.13585, whose authors set no lower bound: here `clip_low = 1`. Equals verl's "cispo".
"""

import torch

from mainspring.config.trainer import TrainerConfig
from trainer.losses.objective import clip_sums, loss_of, ratio_of
from trainer.losses.protocol import ActionTokens, LossOutput


def cispo(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports `clip_fraction`, the tokens whose importance weight is at a bound, and of these
    `clip_fraction_low` and `clip_fraction_high`."""
    with torch.no_grad():
        ratio = ratio_of(tokens.logprobs, tokens.proximal_logprobs)
        low, high = 1 - trainer.clip_low, 1 + trainer.clip_high
        weight = ratio.clamp(low, high)
        sums = clip_sums(ratio < low, ratio > high)
    objective = weight * tokens.advantages * tokens.logprobs
    return LossOutput(loss_of(objective, tokens, trainer), sums)
