"""Masked values of several sequences as one tensor, and back."""

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


def unpacked(values: Tensor, masks: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.float32]]:
    """The rows that `packed` takes `values` [N] from, each [T]; 0 where not masked."""
    rows = []
    parts = values.cpu().split([int(mask.sum()) for mask in masks])
    for mask, part in zip(masks, parts, strict=True):
        row = np.zeros(len(mask), np.float32)
        row[mask] = part.numpy()
        rows.append(row)
    return rows
