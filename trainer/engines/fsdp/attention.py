"""Attention over packed sequences, registered with transformers as an attention implementation.

Sequences stand one after the other in a batch of one row; each is computed by itself, so no token
sees another sequence, and no mask of all pairs of a pack exists. Knows what models ask for: grouped
queries, sliding windows, sinks, capped scores, values of another width than keys. A module that
asks for something else, or that the lengths of the sequences do not reach, is refused here or by
`trainer.engines.fsdp.probe`. Imported by the rest of this folder.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from mainspring.artifacts.batch_invariance import KEY_BLOCK, whole_blocks
from mainspring.errors import ModelError
from trainer.model.packing import PackedSequences
from trainer.model.scores import additive, explicit, seen

IMPLEMENTATION = "mainspring_packed"
QUERY_BLOCK = 1024
"""Fewest queries of a window, or of capped scores, that are computed at once: a mask of a block
takes 1 MiB, and of a whole sequence of 32k tokens 1 GiB."""
WIDTH_STEP = 8
"""Fused kernels on GPUs take heads whose width is a multiple of this."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sequences: PackedSequences | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """[1, heads, T, width] in, [1, T, heads, width] out. `s_aux`: [heads] scores of the sinks.
    Raises ModelError."""
    if sequences is None or attention_mask is not None:
        raise ModelError(
            f"{type(module).__name__} makes a mask of its own, or does not hand on the lengths of "
            "packed sequences, so the engine 'fsdp' cannot keep them apart",
            remedy="use another model",
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    lengths = sequences.lengths_N
    queries, keys, values = (x.split(lengths, dim=2) for x in (query, key, value))
    parts = zip(queries, keys, values, strict=True)
    if softcap is not None:
        if s_aux is not None:
            raise ModelError(
                f"{type(module).__name__} has both capped scores and sinks, which the engine "
                "'fsdp' cannot compute together",
                remedy="use another model",
            )
        out = [_capped(q, k, v, scale, softcap, sliding_window) for q, k, v in parts]
    else:
        as_served = sequences.as_served
        out = [
            _one(q, k, v, scale, sliding_window, s_aux, as_served=as_served) for q, k, v in parts
        ]
    return torch.cat(out, dim=2).transpose(1, 2).contiguous(), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Models make none: sequences are kept apart above."""


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)


def _one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    sinks: Tensor | None,
    *,
    as_served: bool,
) -> Tensor:
    length = query.shape[2]
    if window is not None and window < length:
        return _in_window(query, key, value, scale, window, sinks)
    if sinks is not None:
        return _with_sinks(query, key, value, scale, sinks, None)
    if as_served:
        num_missing = whole_blocks(length, KEY_BLOCK) - length
        key, value = (F.pad(x, (0, 0, 0, num_missing)) for x in (key, value))
        # is_causal leaves blocks of keys out, and so sums in another order.
        mask = query.new_full((length, key.shape[2]), -torch.inf).triu(1)
        return _sdpa(query, key, value, mask, scale)
    return _sdpa(query, key, value, None, scale)


def _in_window(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int, sinks: Tensor | None
) -> Tensor:
    """Blocks of queries with the keys that any of them sees."""
    out = []
    for start, end, first in _blocks(query.shape[2], window):
        mask = _seen(start, end, first, window, query.device)
        part = query[:, :, start:end], key[:, :, first:end], value[:, :, first:end]
        if sinks is None:
            out.append(_sdpa(*part, mask, scale))
        else:
            out.append(_with_sinks(*part, scale, sinks, mask))
    return torch.cat(out, dim=2)


def _blocks(length: int, window: int | None) -> list[tuple[int, int, int]]:
    """Queries [start, end) of each block, and the first key that one of them sees."""
    size = max(window or 0, QUERY_BLOCK)
    starts = range(0, length, size)
    firsts = [0 if window is None else max(0, start - window + 1) for start in starts]
    ends = [min(start + size, length) for start in starts]
    return list(zip(starts, ends, firsts, strict=True))


def _seen(start: int, end: int, first: int, window: int | None, device: torch.device) -> Tensor:
    """[queries, keys] whether a query sees a key."""
    positions = torch.arange(first, end, device=device)
    return seen(positions[start - first :], positions, window)


def _with_sinks(
    query: Tensor, key: Tensor, value: Tensor, scale: float, sinks: Tensor, mask: Tensor | None
) -> Tensor:
    """A sink is a key before all others, whose value is 0. Queries and keys get one more channel,
    in which only the sink's key is not 0, so any kernel computes it, also for grouped queries."""
    width, missing = query.shape[-1], -(query.shape[-1] + 1) % WIDTH_STEP
    score = (sinks / scale).to(query.dtype).view(1, -1, 1, 1).expand(1, -1, query.shape[2], 1)
    query = F.pad(torch.cat([query, score], dim=3), (0, missing))
    sink = key.new_zeros(1, key.shape[1], 1, width + 1)
    sink[..., -1] = 1.0
    key = F.pad(torch.cat([sink, F.pad(key, (0, 1))], dim=2), (0, missing))
    value = F.pad(value, (0, 0, 1, 0))
    if mask is not None:
        return _sdpa(query, key, value, F.pad(mask, (1, 0), value=True), scale)
    # Each query sees one key more: one query before the first one keeps the mask causal.
    return _sdpa(F.pad(query, (0, 0, 1, 0)), key, value, None, scale)[:, :, 1:]


def _capped(
    query: Tensor, key: Tensor, value: Tensor, scale: float, cap: float, window: int | None
) -> Tensor:
    """No kernel of torch caps scores: they exist for a block of queries, in the backward pass
    again."""
    key, value = (_by_query_head(x, query) for x in (key, value))

    def block(start: int, end: int, first: int) -> Tensor:
        mask = additive(_seen(start, end, first, window, query.device), query.dtype)
        part = query[:, :, start:end], key[:, :, first:end], value[:, :, first:end]
        return explicit(*part, mask, scale, softcap=cap)

    blocks = _blocks(query.shape[2], window)
    if len(blocks) == 1:
        return block(*blocks[0])
    parts: list[Any] = [checkpoint(block, *place, use_reentrant=False) for place in blocks]
    return torch.cat(parts, dim=2)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if query.is_cuda and query.dtype is torch.float32:
        # As in trainer.model.attention: no fused kernel takes grouped queries in float32.
        key, value = (_by_query_head(x, query) for x in (key, value))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _by_query_head(x: Tensor, query: Tensor) -> Tensor:
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)
