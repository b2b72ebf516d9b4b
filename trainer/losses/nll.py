"""Negative log-likelihood: each token's log-prob times its advantage, without a ratio or a clip.

With the advantage "raft" it is supervised training on the kept rollouts (RAFT, arXiv 2304.06767;
arXiv 2504.11343); with any other it is REINFORCE (Williams 1992) on the batch as if the current
weights had sampled it.
"""

from mainspring.config.trainer import TrainerConfig
from trainer.losses.objective import loss_of
from trainer.losses.protocol import ActionTokens, LossOutput


def nll(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports `nll`, mean over all tokens alike."""
    objective = tokens.advantages * tokens.logprobs
    return LossOutput(loss_of(objective, tokens, trainer), {"nll": -tokens.logprobs.detach().sum()})
