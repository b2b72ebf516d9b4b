"""Attention of decoding requests that begin with the same tokens: these are looked at once.

Requests of a group have one prompt, and all requests of an agent have its instructions. Each slot
holds them, and reading every copy is most of a decoding step with a long prompt. The keys of one
slot serve the queries of all; what each has behind them is added by the sums of the softmax.
Invariant: the result is that of attention over all keys, but for rounding; a reproducible engine
does without. Imported by `engine.model.attention`.
"""

from typing import Any

import torch
from torch import Tensor

MIN_SHARED = 64
"""Fewer tokens cost less than two passes."""
MIN_REQUESTS = 3


def is_worth(num_shared: int, num_requests: int, query: Tensor, values: Tensor) -> bool:
    """Only torch's attention on a CPU tells the sums that are needed, for one width of heads."""
    return (
        num_shared >= MIN_SHARED
        and num_requests >= MIN_REQUESTS
        and query.device.type == "cpu"
        and query.dtype is torch.float32
        and query.shape[-1] == values.shape[-1]
    )


def cascade(
    query: Tensor, keys: Tensor, values: Tensor, num_shared: int, mask: Tensor, scale: float
) -> Tensor:
    """query [D, K, G, d] over keys [D, K, S, d], of which the first `num_shared` are the same in
    all; mask [D, 1, 1, S] -> [D, K, G, v]."""
    requests, heads, group, width = query.shape
    together = query.transpose(0, 1).reshape(1, heads, requests * group, width)
    first, first_sums = _attend(
        together, keys[:1, :, :num_shared], values[:1, :, :num_shared], None, scale
    )
    first = first.reshape(heads, requests, group, -1).transpose(0, 1)
    first_sums = first_sums.reshape(heads, requests, group).transpose(0, 1)
    rest, rest_sums = _attend(
        query, keys[:, :, num_shared:], values[:, :, num_shared:], mask[..., num_shared:], scale
    )
    share = torch.sigmoid(first_sums - rest_sums)[..., None]
    return torch.lerp(rest, first, share)


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """With the logarithm of each query's sum."""
    flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, keys, values, 0.0, False, attn_mask=mask, scale=scale)
