"""A loss of your own: importance weights are capped, and every token keeps its gradient.

Source: CISPO, MiniMax-M1, arXiv 2506.13585, without the lower bound of Mainspring's own "cispo".
"""

import torch

from mainspring.config.trainer import TrainerConfig
from trainer.losses.protocol import ActionTokens, LossOutput


def cispo(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports `capped_fraction`: the tokens whose importance weight is at the cap."""
    ratio = (tokens.logprobs.detach() - tokens.proximal_logprobs).exp()
    capped = ratio.clamp(max=1 + trainer.clip_high)
    objective = capped * tokens.advantages * tokens.logprobs
    return LossOutput(
        loss=-torch.dot(objective, tokens.weights),
        sums={"capped_fraction": (capped < ratio).sum()},
    )
