"""Each request by itself, with a cache that the model's own code makes and reads.

The way for models whose attention or whose states the engine does not know: right, and slower, as
no two requests share a pass. A model whose cache cannot be continued is computed from the first
token at each step (`keeps = False`). Imported by `served_model`.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from engine.model.adapters import Adapters
from engine.model.key_values import Heads
from engine.model.padding import Padding
from engine.model.slots import KvShape, SlotPool

_NAMES = ("past_key_values", "cache_params", "state")
"""Names of a cache in a model's output; it takes it by the same one."""
SURVEYED_TOKENS = (8, 16)


class RequestCaches:
    """A SlotStore: the cache that each slot has."""

    def __init__(self, num_slots: int) -> None:
        self.caches: list[Any] = [None] * num_slots
        """A name and the cache that the model takes by it."""

    def swap(self, a: int, b: int, length_a: int, length_b: int) -> None:
        self.caches[a], self.caches[b] = self.caches[b], self.caches[a]

    def copy(self, source: int, target: int, length: int, whole: int) -> None:
        name, cache = copy.deepcopy(self.caches[source])
        if length < whole:
            cache.crop(length - whole)
        self.caches[target] = name, cache

    def usable(self, slot: int, common: int, whole: int) -> int:
        if self.caches[slot] is None:
            return 0
        _, cache = self.caches[slot]
        return common if common == whole or _can_be_cut(cache) else 0

    def forget(self, slot: int) -> None:
        self.caches[slot] = None


def _can_be_cut(cache: object) -> bool:
    layers: Any = getattr(cache, "layers", ())
    return type(cache).__module__ == Cache.__module__ and all(
        type(layer) is DynamicLayer for layer in layers
    )


class RequestPass:
    def __init__(self, model: Any, adapters: Adapters, *, keeps: bool) -> None:
        self._model = model
        self._adapters = adapters
        self._keeps = keeps
        self.attention: frozenset[tuple[int, Heads]] = frozenset()
        self.name = "requests" if keeps else "none"
        options = inspect.signature(model.forward).parameters
        self._last_alone = {"logits_to_keep": 1} if "logits_to_keep" in options else {}
        self._bytes = [self._num_bytes(count) for count in SURVEYED_TOKENS] if keeps else [0, 0]

    def inexact(self, max_length: int) -> str | None:
        return "its requests are computed by transformers, each by itself"

    def shape(self, max_length: int) -> KvShape:
        (few, many), (some, more) = self._bytes, SURVEYED_TOKENS
        token_bytes = (many - few) // (more - some)
        state_bytes = max(0, few - token_bytes * some)
        return KvShape(
            token_bytes, max_length, state_bytes, str(next(self._model.parameters()).device)
        )

    def pool(self, num_slots: int, max_length: int) -> SlotPool:
        return SlotPool(num_slots, max_length, RequestCaches(num_slots))

    def logits(
        self,
        pool: SlotPool,
        new_ids: Sequence[list[int]],
        num_decoding: int,
        adapters: Sequence[str | None],
        padding: Padding,
    ) -> Tensor:
        """[R, V]"""
        store: Any = pool.store
        rows = []
        for slot, (new, adapter) in enumerate(zip(new_ids, adapters, strict=True)):
            ids = new if self._keeps else pool.tokens(slot) + new
            held = store.caches[slot] if pool.lengths[slot] else None
            with self._adapters.applied([adapter], [len(ids)]):
                row, store.caches[slot] = self._run(ids, held)
            rows.append(row)
        return torch.stack(rows)

    def _run(self, ids: list[int], held: tuple[str, Any] | None) -> tuple[Tensor, Any]:
        device = next(self._model.parameters()).device
        options: dict[str, Any] = {held[0]: held[1]} if held else {}
        output = self._model(
            input_ids=torch.tensor([ids], device=device),
            use_cache=self._keeps,
            **self._last_alone,
            **options,
        )
        found = [(name, getattr(output, name, None)) for name in _NAMES]
        kept = next(((name, cache) for name, cache in found if cache is not None), None)
        return output.logits[0, -1], kept if self._keeps else None

    @contextmanager
    def as_stock(self) -> Iterator[None]:
        yield

    def undo(self) -> None:
        pass

    def _num_bytes(self, num_tokens: int) -> int:
        """Size of a cache after these many tokens."""
        _, kept = self._run([0] * num_tokens, None)
        return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(kept))


def _tensors(held: Any, depth: int = 0) -> Iterator[Tensor]:
    """Those in a cache of any class."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from _tensors(value, depth + 1)
    elif isinstance(held, list | tuple):
        for value in held:
            yield from _tensors(value, depth + 1)
    elif depth < 6 and hasattr(held, "__dict__"):
        yield from _tensors(vars(held), depth + 1)
