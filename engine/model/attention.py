"""Attention over KV slots, registered with transformers as an attention implementation.

One forward pass is ragged: the new tokens of all requests stand behind each other in a batch of
one, so that the linear layers see no padding. `Ragged` tells which token belongs to which slot and
position. Attention runs in one batch for the decoding requests (one new token each), and one by
one for the others. Knows sliding windows, capped scores, sinks and values of another width than
keys; `AttentionSurvey` finds out what a model asks for. A pass may be padded
(`engine.model.padding`): rows behind the new tokens, queries behind those of a head and keys behind
those of a slot change no result, and are written nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from engine.model.cascade import cascade, is_worth
from engine.model.key_values import Heads, KeyValues
from engine.model.padding import NONE, Padding, padded
from trainer.model.scores import additive, explicit, seen

IMPLEMENTATION = "mainspring_slots"
UNSUPPORTED = ("position_bias", "head_mask", "indices")
"""Arguments by which models ask for another kind of attention."""
QUERY_BLOCK = 1024
"""Queries of a prompt that attend at once: a mask of all pairs of a long one takes gigabytes."""


@dataclass(frozen=True, slots=True)
class ScoreKind:
    """How a layer computes its scores."""

    scale: float
    window: int | None = None
    """Keys that a query sees, itself included."""
    softcap: float | None = None
    sinks: Tensor | None = None
    """[heads]"""

    def is_plain(self, max_length: int) -> bool:
        """In sequences up to this length."""
        is_full = self.window is None or self.window >= max_length
        return is_full and self.softcap is None and self.sinks is None


class Attending(Protocol):
    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: ScoreKind
    ) -> Tensor:
        """query [1, H, N, d], key [1, K, N, d], value [1, K, N, v] -> [1, N, H, v]."""
        ...


@dataclass(slots=True)
class AttentionSurvey:
    """Notes what each layer keeps and how it attends, in a pass whose result counts for nothing."""

    layers: dict[int, Heads] = field(default_factory=dict)
    kinds: dict[int, ScoreKind] = field(default_factory=dict)
    attention: set[tuple[int, Heads]] = field(default_factory=set)
    """With the number of heads of queries."""
    calls: list[int] = field(default_factory=list)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: ScoreKind
    ) -> Tensor:
        self.calls.append(layer)
        self.layers[layer] = Heads(key.shape[1], key.shape[3], value.shape[3])
        self.kinds[layer] = kind
        self.attention.add((query.shape[1], self.layers[layer]))
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(frozen=True, slots=True)
class Prefill:
    slot: int
    first: int
    """Its new tokens are [first, last) of the pass."""
    last: int
    start: int
    """Tokens in the slot before the pass."""

    @property
    def num_new(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Ragged:
    """N new tokens; those of the D decoding requests, in slots [0, D), come first."""

    kv: KeyValues
    num_tokens: int
    """N"""
    slots: Tensor
    """[D], those of the decoding requests."""
    positions: Tensor
    """[N] position in the slot, which is the token's position in its sequence."""
    num_decoding: int
    shortest: int
    """Least tokens of a decoding request before the pass."""
    longest: int
    """Most of them after the pass."""
    prefills: tuple[Prefill, ...]
    padding: Padding
    num_shared: int = 0
    """Tokens with which all decoding requests begin alike."""
    _masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, kind: ScoreKind
    ) -> Tensor:
        """The G = H / K query heads of one kv head are laid along the query axis: no copy of the
        cache."""
        keys, values = self.kv.layer(layer)
        self._write(keys, key[0])
        self._write(values, value[0])
        kv_heads, group = key.shape[1], query.shape[1] // key.shape[1]
        query = query[0].transpose(0, 1)
        output = query.new_empty(*query.shape[:2], value.shape[3])
        output[self.num_tokens :] = 0.0
        window = kind.window
        if window is not None and window >= self.kv.max_length:
            window = None
        if decoding := self.num_decoding:
            first = self._first(self.shortest, window)
            last = self.padding.of_keys(self.longest)
            mask = self._mask(0, decoding, first, last, window)[:, None, None]
            part = query[:decoding].reshape(decoding, kv_heads, group, -1)
            looked_at = keys[:decoding, :, first:last], values[:decoding, :, first:last]
            if is_worth(self.num_shared, decoding, part, values) and kind.is_plain(
                self.kv.max_length
            ):
                attended = cascade(part, *looked_at, self.num_shared, mask, kind.scale)
            else:
                attended = self._grouped(part, *looked_at, mask, kind)
            output[:decoding] = attended.reshape(decoding, kv_heads * group, -1)
        for row in self.prefills:
            # Padded rows have bits that depend on how many keys are looked at: all at once.
            block = row.num_new if self.padding.keys > 1 else QUERY_BLOCK
            for begin in range(0, row.num_new, block):
                num_new = min(block, row.num_new - begin)
                new = slice(row.first + begin, row.first + begin + num_new)
                first = self._first(row.start + begin, window)
                last = self.padding.of_keys(row.start + begin + num_new)
                mask = self._mask(new.start, new.stop, first, last, window)
                grouped = query[new].reshape(num_new, kv_heads, group, -1)
                attended = self._grouped(
                    grouped.permute(1, 2, 0, 3).reshape(1, kv_heads, group * num_new, -1),
                    keys[row.slot, None, :, first:last],
                    values[row.slot, None, :, first:last],
                    mask.repeat(group, 1)[None, None],
                    kind,
                )
                attended = attended.reshape(kv_heads, group, num_new, -1).permute(2, 0, 1, 3)
                output[new] = attended.reshape(num_new, kv_heads * group, -1)
        return output[None]

    def _write(self, kept: Tensor, new: Tensor) -> None:
        """kept [slots, K, max_length, w], new [K, N, w]."""
        if decoding := self.num_decoding:
            kept[self.slots, :, self.positions[:decoding]] = new[:, :decoding].transpose(0, 1)
        for row in self.prefills:
            kept[row.slot, :, row.start : row.start + row.num_new] = new[:, row.first : row.last]

    def _grouped(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, kind: ScoreKind
    ) -> Tensor:
        """query [R, kv_heads, G * T, d], those of a head of queries behind each other."""
        num_queries = query.shape[2]
        if kind.softcap is not None or kind.sinks is not None:
            sinks = kind.sinks
            if sinks is not None:
                by_head = sinks.view(query.shape[1], -1)
                sinks = by_head.repeat_interleave(num_queries // by_head.shape[1], 1)
                sinks = sinks.expand(query.shape[0], -1, -1)
            return explicit(
                query, keys, values, mask, kind.scale, softcap=kind.softcap, sinks=sinks
            )
        width = self.padding.of_queries(num_queries)
        if mask.shape[2] > 1:
            mask = padded(mask, width, dim=2)
        attended = scaled_dot_product_attention(
            padded(query, width, dim=2), keys, values, attn_mask=mask, scale=kind.scale
        )
        return attended[:, :, :num_queries]

    def _first(self, start: int, window: int | None) -> int:
        """First key that a query at position `start` sees, or one before it."""
        first = 0 if window is None else max(0, start - window + 1)
        return first - first % self.padding.keys

    def _mask(self, begin: int, end: int, first: int, last: int, window: int | None) -> Tensor:
        """[end - begin, last - first] of the new tokens [begin, end) and the keys [first, last)."""
        name = (begin, end, first, last, window)
        if name not in self._masks:
            keys = torch.arange(first, last, device=self.positions.device)
            sees = seen(self.positions[begin:end], keys, window)
            self._masks[name] = additive(sees, self.kv.dtype)
        return self._masks[name]


def plan(
    kv: KeyValues,
    lengths: Sequence[int],
    num_new: Sequence[int],
    num_decoding: int,
    padding: Padding = NONE,
    num_shared: int = 0,
) -> Ragged:
    """Slot i gets `num_new[i]` tokens behind its `lengths[i]`; the first `num_decoding` get one,
    and begin with the same `num_shared`."""
    positions, prefills = [], []
    for slot, count in enumerate(num_new):
        start, first = lengths[slot], len(positions)
        positions += range(start, start + count)
        if slot >= num_decoding:
            prefills.append(Prefill(slot, first, len(positions), start))
    decoding = lengths[:num_decoding]
    return Ragged(
        kv,
        len(positions),
        torch.arange(num_decoding, device=kv.device),
        torch.tensor(positions, device=kv.device),
        num_decoding,
        min(decoding, default=0),
        max(decoding, default=0) + 1,
        tuple(prefills),
        padding,
        num_shared,
    )


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ragged: Attending,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """As transformers calls it; `ragged` comes from the pass. `s_aux`: scores of the sinks."""
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ValueError(f"its attention uses {name}")
    if attention_mask is not None:
        raise ValueError("its attention has a mask of its own")
    layer: Any = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kind = ScoreKind(scale, sliding_window, softcap, s_aux)
    return ragged.attend(layer, query, key, value, kind), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Models make none: a pass knows which keys a token sees."""


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
