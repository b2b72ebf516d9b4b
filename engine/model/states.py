"""States of layers that read a sequence token by token: convolutions, linear attention, mamba.

A state has one size whatever the length, so a sequence can be continued only from where a state was
kept: at its end, and before the last token of its prompt, from which other requests with the same
prompt continue. Invariant: the model's own code reads and writes states, through a cache of
transformers whose tensors are parts of these. Imported by `key_values` and `mixers`.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import LinearAttentionCacheLayerMixin

_KINDS = ("conv_states", "recurrent_states")
_Key = tuple[int, str, int]


class StateLayers:
    """Layers with states in a cache that the model has filled, with one sequence in it."""

    def __init__(self, cache: object) -> None:
        layers: Any = getattr(cache, "layers", ())
        self.by_index: dict[int, Any] = {
            index: layer
            for index, layer in enumerate(layers)
            if isinstance(layer, LinearAttentionCacheLayerMixin)
        }

    def tensors(self) -> Iterator[tuple[_Key, Tensor]]:
        """[1, ...] each, by layer, kind and number."""
        for index, layer in self.by_index.items():
            for kind in _KINDS:
                for number, state in getattr(layer, kind).items():
                    if state is not None:
                        yield (index, kind, number), state

    @property
    def num_bytes(self) -> int:
        """Size of a slot's states, those of now and those that are kept."""
        return 2 * sum(state.numel() * state.element_size() for _, state in self.tensors())


class SlotStates:
    def __init__(self, layers: StateLayers, num_slots: int, config: PretrainedConfig) -> None:
        self._layers = layers
        self._config = config
        self.kept_lengths = [0] * num_slots
        """Tokens after which a slot's kept state stands; 0: none is kept."""
        self._now: dict[_Key, Tensor] = {}
        self._kept: dict[_Key, Tensor] = {}
        for key, state in layers.tensors():
            size = (num_slots, *state.shape[1:])
            self._now[key] = torch.zeros(size, dtype=state.dtype, device=state.device)
            self._kept[key] = torch.zeros_like(self._now[key])

    @property
    def are_kept(self) -> bool:
        """False: the model has none."""
        return bool(self._now)

    def cache(self, first: int, last: int, *, begins: bool) -> DynamicCache:
        """States of the slots [first, last) as mixers take them. `begins`: of new sequences."""
        cache = DynamicCache(config=self._config)
        for index, template in self._layers.by_index.items():
            layer = copy.copy(template)
            for name in ("has_previous_state", *_KINDS):
                setattr(layer, name, dict(getattr(template, name)))
            for number in layer.has_previous_state:
                layer.has_previous_state[number] = not begins
                for kind in _KINDS:
                    if (state := self._now.get((index, kind, number))) is not None:
                        getattr(layer, kind)[number] = state[first:last]
            cache.layers[index] = layer
        return cache

    def keep(self, slot: int, layer: int) -> None:
        """The state of now."""
        for key in self._now:
            if key[0] == layer:
                self._kept[key][slot] = self._now[key][slot]

    def swap(self, a: int, b: int) -> None:
        for states in (*self._now.values(), *self._kept.values()):
            states[[a, b]] = states[[b, a]]
        kept = self.kept_lengths
        kept[a], kept[b] = kept[b], kept[a]

    def copy(self, source: int, target: int, *, as_kept: bool) -> None:
        """`as_kept`: as it was when a state was kept."""
        states: Mapping[_Key, Tensor] = self._kept if as_kept else self._now
        for key, state in states.items():
            self._now[key][target] = state[source]
        if source != target:
            self.kept_lengths[target] = 0
