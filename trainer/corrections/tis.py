"""Truncated importance sampling: each token counts by its ratio, which is clamped.

Sources: IMPALA, arXiv 1802.01561, for the truncation; F. Yao et al., "Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training" (2025), for engine and trainer. Equals the token-level
weights of verl and slime. With a proximal policy between the two it is decoupled PPO, as in AReaL,
arXiv 2505.24298.
"""

from torch import Tensor

from mainspring.config.training.correction import CorrectionConfig
from trainer.corrections.protocol import Corrected
from trainer.losses.objective import bounded


def tis(log_ratio: Tensor, correction: CorrectionConfig) -> Corrected:
    ratio = bounded(log_ratio).exp()
    low, high = correction.bounds
    return Corrected(factors=ratio.clamp(low, high), is_cut=(ratio < low) | (ratio > high))
