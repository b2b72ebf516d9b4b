"""The clipped objective with one ratio for all tokens of a sample.

That is the geometric mean of their ratios: rewards are given to sequences, and the noise of single
tokens averages out. Source: GSPO, arXiv 2507.18071. Here in its form for advantages by token
(GSPO-token): value and gradient equal GSPO's where a sample's advantages are equal, and its
aggregation is "seq_mean_token_mean". Equals verl's "gspo".
"""

import torch

from mainspring.config.trainer import TrainerConfig
from trainer.losses.clip import clipped
from trainer.losses.objective import bounded, loss_of
from trainer.losses.protocol import ActionTokens, LossOutput


def gspo(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports what `clip` does: a clipped sample counts with all its tokens."""
    with torch.no_grad():
        log_ratio = tokens.logprobs - tokens.proximal_logprobs
        parts = log_ratio.split(list(tokens.num_tokens_N))
        of_sample = torch.cat([part.mean().expand(len(part)) for part in parts])
    # Of the value of its sample's ratio; the gradient goes through the token itself.
    ratio = bounded(of_sample + (tokens.logprobs - tokens.logprobs.detach())).exp()
    objective, sums = clipped(ratio, tokens.advantages, trainer)
    return LossOutput(loss_of(objective, tokens, trainer), sums)
