"""Masked values of several sequences as one tensor."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def packed(
    values: Sequence[NDArray], masks: Sequence[NDArray[np.bool_]], device: torch.device
) -> Tensor:
    """The masked values of all rows, one after the other: [N]."""
    picked = [value[mask] for value, mask in zip(values, masks, strict=True)]
    return torch.from_numpy(np.concatenate(picked)).to(device)
