"""IcePop: each token counts by its ratio, and not at all where that is outside of the bounds.

Source: Ring-1T, arXiv 2510.18855. A token that is cut stays in the loss's denominator.
"""

import torch
from torch import Tensor

from mainspring.config.training.correction import CorrectionConfig
from trainer.corrections.protocol import Corrected
from trainer.losses.objective import bounded


def icepop(log_ratio: Tensor, correction: CorrectionConfig) -> Corrected:
    ratio = bounded(log_ratio).exp()
    low, high = correction.bounds
    is_cut = ~((low <= ratio) & (ratio <= high))
    return Corrected(factors=torch.where(is_cut, 0.0, ratio), is_cut=is_cut)
