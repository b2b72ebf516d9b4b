"""PPO's clipped objective with a third bound: what a token of negative advantage costs at most.

Without it a token that became much likelier than it was, and was bad, has a loss without bound.
Source: dual-clip PPO, arXiv 1912.09729. Equals verl's policy loss, whose `clip_ratio_c` is
`dual_clip` here.
"""

import torch

from mainspring.config.trainer import TrainerConfig
from trainer.losses.clip import clipped
from trainer.losses.objective import loss_of, ratio_of
from trainer.losses.protocol import ActionTokens, LossOutput


def dual_clip(tokens: ActionTokens, trainer: TrainerConfig) -> LossOutput:
    """Reports what `clip` does, and `clip_fraction_dual`, the tokens at the third bound, which are
    part of `clip_fraction`."""
    ratio = ratio_of(tokens.logprobs, tokens.proximal_logprobs)
    objective, sums = clipped(ratio, tokens.advantages, trainer)
    floor = trainer.dual_clip * tokens.advantages
    with torch.no_grad():
        num_cut = ((tokens.advantages < 0) & (objective < floor)).sum()
    sums |= {"clip_fraction": sums["clip_fraction"] + num_cut, "clip_fraction_dual": num_cut}
    bounded = torch.where(tokens.advantages < 0, torch.maximum(objective, floor), objective)
    return LossOutput(loss_of(bounded, tokens, trainer), sums)
