"""Low-rank adapters (LoRA, arXiv 2106.09685) that requests name, beside the frozen model.

Invariants: each token is computed with the adapter of its own request, or with none, whatever runs
beside it; a folder that does not fit the served model is refused whole. A layer adds
scale * B (A x) for the rows of each adapter, so the model's own weights stay as they are. Used by
the engine thread alone; folders are PEFT's, as `trainer.model.adapters` writes them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear

from mainspring.artifacts.adapter_files import CONFIG, WEIGHTS
from mainspring.errors import ModelError

_PREFIX = "base_model.model."
_SUFFIX = ".lora_A.weight"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [first, last) of a pass belong to requests with one adapter."""

    adapter: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Pair:
    a: Tensor
    """[rank, inputs]"""
    b: Tensor
    """[outputs, rank], times the scale."""


class Adapters:
    def __init__(self, model: torch.nn.Module) -> None:
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        self._pairs: dict[str, dict[str, _Pair]] = {}
        """By the layer's name, then the adapter's."""
        self.directories: dict[str, Path] = {}
        """By the adapter's name."""
        self._rows: list[Rows] = []
        self._first_row = 0
        """First row of what a layer gets now, in the pass."""

    def load(self, name: str, directory: Path) -> None:
        """Raises ModelError, and then nothing has changed."""
        if name in self.directories:
            raise ModelError(f"adapter {name} is already loaded")
        pairs = self._read(directory)
        for layer, pair in pairs.items():
            if layer not in self._pairs:
                self._pairs[layer] = {}
                self._layers[layer].register_forward_hook(partial(self._add, layer))
            self._pairs[layer][name] = pair
        self.directories[name] = directory

    def remove(self, name: str) -> None:
        del self.directories[name]
        for pairs in self._pairs.values():
            pairs.pop(name, None)

    @contextmanager
    def applied(self, names: Sequence[str | None], counts: Sequence[int]) -> Iterator[None]:
        """Within one pass, whose request i has `counts[i]` rows behind those before it."""
        first = 0
        for name, count in zip(names, counts, strict=True):
            last = first + count
            if name is not None:
                before = self._rows[-1] if self._rows else None
                if before and (before.adapter, before.last) == (name, first):
                    self._rows[-1] = Rows(name, before.first, last)
                else:
                    self._rows.append(Rows(name, first, last))
            first = last
        try:
            yield
        finally:
            self._rows.clear()

    @contextmanager
    def from_row(self, row: int) -> Iterator[None]:
        """A layer gets a part of the pass meanwhile, from its row `row` on."""
        self._first_row = row
        try:
            yield
        finally:
            self._first_row = 0

    def _add(self, layer: str, module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        """inputs [.., .., inputs], output [.., .., outputs], rows in the order of the pass."""
        entering, leaving = inputs[0].flatten(0, -2), output.flatten(0, -2)
        for rows in self._rows:
            first = max(0, rows.first - self._first_row)
            last = min(len(entering), rows.last - self._first_row)
            if first < last and (pair := self._pairs[layer].get(rows.adapter)):
                leaving[first:last] += linear(linear(entering[first:last], pair.a), pair.b)

    def _read(self, directory: Path) -> dict[str, _Pair]:
        try:
            config = json.loads((directory / CONFIG).read_text())
            weights = load_file(directory / WEIGHTS)
            kind, scale = config["peft_type"], config["lora_alpha"] / config["r"]
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"adapter {directory}: cannot be read: {error!r}") from None
        if kind != "LORA":
            raise ModelError(f"adapter {directory}: peft_type is {kind!r}, expected 'LORA'")
        pairs: dict[str, _Pair] = {}
        for key in [key for key in weights if key.endswith(_SUFFIX)]:
            layer = key.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            a, b = weights.pop(key), weights.pop(key.replace(".lora_A.", ".lora_B."), None)
            module = self._layers.get(layer)
            if module is None or b is None:
                raise ModelError(f"adapter {directory}: {key} has no place in the served model")
            shape, expected_shape = (b.shape[0], a.shape[1]), tuple(module.weight.shape)
            if shape != expected_shape or a.shape[0] != b.shape[1]:
                raise ModelError(
                    f"adapter {directory}: {layer} is for a matrix of {list(shape)}, the served "
                    f"model's is {list(expected_shape)}",
                    remedy="serve the model that the adapter was trained on",
                )
            like = module.weight
            pairs[layer] = _Pair(a.float().to(like), (b.float() * scale).to(like))
        if weights or not pairs:
            problem = f"{sorted(weights)[0]} is no part of an adapter" if weights else "it is empty"
            raise ModelError(f"adapter {directory}: {problem}")
        return pairs
