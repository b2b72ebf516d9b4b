"""PPO's clipped loss of a value model. No model, no process group.

Source: PPO's published code (arXiv 1707.06347), as verl's `compute_value_loss` has it. Imported by
`trainer.step.critic`.
"""

import torch
from torch import Tensor


def value_loss(
    values_T: Tensor, before_T: Tensor, returns_T: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """The loss of each token, half of a squared error, and whether the clip decides it.

    `before_T`: values before the step. A value that moved from there by more than `clip` counts as
    if it had moved by `clip`, if that is worse, and then has no gradient."""
    free = (values_T - returns_T).square()
    bounded = before_T + (values_T - before_T).clamp(-clip, clip)
    held = (bounded - returns_T).square()
    return 0.5 * torch.maximum(free, held), held > free
