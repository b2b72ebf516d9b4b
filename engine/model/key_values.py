"""Keys and values of each slot's tokens, for each layer that computes attention.

Layers with the same heads lie in one tensor. Invariant: memory is never uninitialised, since a NaN
behind the mask would still poison a row. Imported by `slot_pass` and attention.
"""

import math
import mmap
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.states import SlotStates


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of the keys and values that a layer keeps of a token."""

    num_heads: int
    key_width: int
    value_width: int

    @property
    def num_values(self) -> int:
        return self.num_heads * (self.key_width + self.value_width)


class KeyValues:
    def __init__(
        self,
        layers: Mapping[int, Heads],
        num_slots: int,
        max_length: int,
        states: SlotStates,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`states`: of the layers beside attention."""
        self.states = states
        self.max_length = max_length
        self.device, self.dtype = device, dtype
        self.written: list[int] = []
        """Layers of the last pass, as often as they wrote."""
        by_heads: defaultdict[Heads, list[int]] = defaultdict(list)
        for layer, heads in layers.items():
            by_heads[heads].append(layer)
        self._parts: list[Tensor] = []
        """[layers, slots, heads, max_length, width] each."""
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for heads, members in by_heads.items():
            size = (len(members), num_slots, heads.num_heads, max_length)
            keys = self._zeros(*size, heads.key_width)
            values = self._zeros(*size, heads.value_width)
            self._parts += [keys, values]
            self._layers |= {layer: (keys[n], values[n]) for n, layer in enumerate(members)}

    def _zeros(self, *size: int) -> Tensor:
        num_bytes = math.prod(size) * self.dtype.itemsize
        if self.device.type != "cpu" or not num_bytes:
            return torch.zeros(size, dtype=self.dtype, device=self.device)
        # Zero pages that are mapped when they are written: slots and positions never used cost no
        # memory. Not numpy's, which asks for pages of 2 MiB: a few tokens would take one each.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, num_bytes, flags=flags)
        return torch.frombuffer(pages, dtype=self.dtype).view(size)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer: [slots, heads, max_length, width] each."""
        self.written.append(index)
        return self._layers[index]

    def swap(self, a: int, b: int, length_a: int, length_b: int) -> None:
        for part in self._parts:
            kept = part[:, a, :, :length_a].clone()
            part[:, a, :, :length_b] = part[:, b, :, :length_b]
            part[:, b, :, :length_a] = kept
        self.states.swap(a, b)

    def copy(self, source: int, target: int, length: int, whole: int) -> None:
        if source != target:
            for part in self._parts:
                part[:, target, :, :length] = part[:, source, :, :length]
        self.states.copy(source, target, as_kept=length < whole)

    def usable(self, slot: int, common: int, whole: int) -> int:
        if not self.states.are_kept or common == whole:
            return common
        kept = self.states.kept_lengths[slot]
        return kept if kept <= common else 0

    def forget(self, slot: int) -> None:
        self.states.kept_lengths[slot] = 0
