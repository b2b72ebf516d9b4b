"""Attention over KV slots, registered with transformers as an attention implementation.

One forward pass is ragged: the new tokens of all requests stand behind each other in a batch of
one, so that the linear layers see no padding. `Ragged` tells which token belongs to which slot and
position. Attention runs in one batch for the decoding requests (one new token each), and one by
one for the others. A pass may be padded (`engine.padding`): rows behind the new tokens, queries
behind those of a head and keys behind those of a slot change no result, and are written nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.padding import NONE, Padding, padded
from engine.slots import SlotPool

IMPLEMENTATION = "mainspring_slots"
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask", "indices")
"""Arguments by which models ask for another kind of attention than full and causal."""


@dataclass(frozen=True, slots=True)
class Prefill:
    slot: int
    first: int
    """Its new tokens are [first, last) of the pass."""
    last: int
    length: int
    """Keys to look at: tokens in the slot after the pass, or more."""
    mask: torch.Tensor
    """[1, 1, last - first, length], 0 or -inf."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """N new tokens; those of the D decoding requests, in slots [0, D), come first."""

    pool: SlotPool
    slots: torch.Tensor
    """[N]"""
    positions: torch.Tensor
    """[N] position in the slot, which is the token's position in its sequence."""
    num_decoding: int
    decode_length: int
    """Keys to look at: the longest slot among the decoding requests after the pass, or more."""
    decode_mask: torch.Tensor
    """[D, 1, 1, decode_length], 0 or -inf."""
    prefills: tuple[Prefill, ...]
    padding: Padding


def plan(
    pool: SlotPool,
    num_new: Sequence[int],
    num_decoding: int,
    padding: Padding = NONE,
) -> Ragged:
    """Slot i gets `num_new[i]` tokens behind what it holds; the first `num_decoding` get one."""
    starts, counts = torch.tensor(pool.lengths[: len(num_new)]), torch.tensor(num_new)
    slots = torch.repeat_interleave(torch.arange(len(num_new)), counts)
    firsts = counts.cumsum(0) - counts
    positions = torch.arange(len(slots)) - firsts[slots] + starts[slots]
    decode_length = padding.of_keys(int(starts[:num_decoding].max()) + 1) if num_decoding else 0
    prefills = []
    for slot in range(num_decoding, len(num_new)):
        first, length = int(firsts[slot]), padding.of_keys(pool.lengths[slot] + num_new[slot])
        last = first + num_new[slot]
        mask = _causal(positions[first:last], length)[None, None]
        prefills.append(Prefill(slot, first, last, length, mask))
    decode_mask = _causal(starts[:num_decoding], decode_length)[:, None, None]
    return Ragged(
        pool, slots, positions, num_decoding, decode_length, decode_mask, tuple(prefills), padding
    )


def _causal(positions: torch.Tensor, length: int) -> torch.Tensor:
    """[T] query positions -> [T, length] additive mask."""
    hidden = torch.arange(length) > positions[:, None]
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    ragged: Ragged,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [1, H, N, d], key and value [1, K, N, d] -> [1, N, H, d].

    The G = H / K query heads of one kv head are laid along the query axis: no copy of the cache.
    """
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"its attention uses {name}")
    if attention_mask is not None:
        raise ValueError("its attention has a mask of its own")
    keys, values = ragged.pool.layer(module.layer_idx)  # pyright: ignore[reportArgumentType]
    num_tokens = len(ragged.slots)
    keys[ragged.slots, :, ragged.positions] = key[0].transpose(0, 1)[:num_tokens]
    values[ragged.slots, :, ragged.positions] = value[0].transpose(0, 1)[:num_tokens]
    kv_heads, head_dim = key.shape[1], query.shape[3]
    group = query.shape[1] // kv_heads
    query = query[0].transpose(0, 1)
    output = torch.empty(query.shape)
    output[num_tokens:] = 0.0
    decoding, length = ragged.num_decoding, ragged.decode_length
    if decoding:
        grouped = query[:decoding].reshape(decoding, kv_heads, group, head_dim)
        attended = scaled_dot_product_attention(
            padded(grouped, ragged.padding.of_queries(group), dim=2),
            keys[:decoding, :, :length],
            values[:decoding, :, :length],
            attn_mask=ragged.decode_mask,
            scale=scaling,
        )
        output[:decoding] = attended[:, :, :group].reshape(decoding, -1, head_dim)
    for row in ragged.prefills:
        num_new = row.last - row.first
        num_queries = group * num_new
        width = ragged.padding.of_queries(num_queries)
        grouped = query[row.first : row.last].reshape(num_new, kv_heads, group, head_dim)
        grouped = grouped.permute(1, 2, 0, 3).reshape(1, kv_heads, num_queries, head_dim)
        attended = scaled_dot_product_attention(
            padded(grouped, width, dim=2),
            keys[row.slot, None, :, : row.length],
            values[row.slot, None, :, : row.length],
            attn_mask=padded(row.mask.repeat(1, 1, group, 1), width, dim=2),
            scale=scaling,
        )
        attended = attended[:, :, :num_queries].reshape(kv_heads, group, num_new, head_dim)
        output[row.first : row.last] = attended.permute(2, 0, 1, 3).reshape(num_new, -1, head_dim)
    return output[None], None


AttentionInterface.register(IMPLEMENTATION, attend)
