"""PPO's clipped objective with separate bounds, and an entropy bonus.

Sources: PPO, arXiv 1707.06347; "clip higher", DAPO, arXiv 2503.14476.
"""

import torch

from mainspring.config.trainer import TrainerConfig
from trainer.losses.protocol import ActionTokens, LossOutput


def clip(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports `clip_fraction`: the tokens whose gradient the clip cut off."""
    ratio = (tokens.logprobs - tokens.served_logprobs).exp()
    free = ratio * tokens.advantages
    clipped = ratio.clamp(1 - trainer.clip_low, 1 + trainer.clip_high) * tokens.advantages
    objective = torch.minimum(free, clipped)
    if trainer.entropy_coef:
        objective = objective + trainer.entropy_coef * tokens.entropy
    with torch.no_grad():
        num_clipped = (clipped < free).sum()
    return LossOutput(-torch.dot(objective, tokens.weights), {"clip_fraction": num_clipped})
