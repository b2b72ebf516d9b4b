"""A sample whose tokens' geometric mean of ratios is outside of the bounds is not trained on.

The ratio of whole sequences as in GSPO, arXiv 2507.18071, here between engine and trainer; verl and
prime-rl mask by it too. A sample that is cut stays in the loss's denominator.
"""

import torch
from torch import Tensor

from mainspring.config.training.correction import CorrectionConfig
from trainer.corrections.protocol import Corrected
from trainer.losses.objective import bounded


def sequence_mask(log_ratio: Tensor, correction: CorrectionConfig) -> Corrected:
    low, high = correction.bounds
    mean = bounded(log_ratio.mean()).exp()
    is_cut = ~((low <= mean) & (mean <= high)).expand(len(log_ratio))
    return Corrected(factors=torch.where(is_cut, 0.0, torch.ones_like(log_ratio)), is_cut=is_cut)
