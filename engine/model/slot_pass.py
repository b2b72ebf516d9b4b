"""One ragged pass of all requests through the model, each over what its slot holds.

The way for models whose attention transformers lets others compute and whose other layers keep
states that it knows. Raises ValueError when made for another one. Imported by `served_model`.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engine.model.adapters import Adapters
from engine.model.attention import IMPLEMENTATION, AttentionSurvey, plan
from engine.model.key_values import Heads, KeyValues
from engine.model.mixers import Mixers
from engine.model.padding import NONE, Padding, padded
from engine.model.slots import KvShape, SlotPool
from engine.model.states import SlotStates, StateLayers

STOCK = "eager"
"""Attention of transformers' own, which every model has."""
SURVEYED_TOKENS = 3


class SlotPass:
    name = "slots"

    def __init__(self, model: Any, adapters: Adapters) -> None:
        self._model = model
        self._adapters = adapters
        self._mixers = Mixers(model, adapters)
        self._states = StateLayers(None)
        self._survey = AttentionSurvey()
        try:
            self._look()
        except Exception:
            self.undo()
            raise

    def _look(self) -> None:
        """Find out what the model's layers keep, and how its attention computes."""
        ids = self._tensor([0] * SURVEYED_TOKENS)
        if self._mixers.found:
            filled = self._model(input_ids=ids[None], use_cache=True)
            self._states = StateLayers(filled.past_key_values)
        self._model.set_attn_implementation(IMPLEMENTATION)
        places = self._tensor(range(SURVEYED_TOKENS))
        self._model(
            input_ids=ids[None],
            position_ids=places[None],
            use_cache=False,
            logits_to_keep=places,
            ragged=self._survey,
        )
        for layer in self._survey.kinds:
            if (times := self._survey.calls.count(layer)) != 1:
                raise ValueError(f"its layer {layer} computes attention {times} times")

    @property
    def attention(self) -> Set[tuple[int, Heads]]:
        return self._survey.attention

    def inexact(self, max_length: int) -> str | None:
        if self._states.by_index:
            return "its layers keep states, whose bits depend on how tokens were cut into passes"
        if not all(kind.is_plain(max_length) for kind in self._survey.kinds.values()):
            return "its attention has windows, capped scores or sinks"
        return None

    def shape(self, max_length: int) -> KvShape:
        weight = next(self._model.parameters())
        values = sum(heads.num_values for heads in self._survey.layers.values())
        return KvShape(
            values * weight.element_size(), max_length, self._states.num_bytes, str(weight.device)
        )

    def pool(self, num_slots: int, max_length: int) -> SlotPool:
        weight = next(self._model.parameters())
        states = SlotStates(self._states, num_slots, self._model.config)
        kv = KeyValues(
            self._survey.layers,
            num_slots,
            max_length,
            states,
            device=weight.device,
            dtype=weight.dtype,
        )
        return SlotPool(num_slots, max_length, kv)

    def logits(
        self,
        pool: SlotPool,
        new_ids: Sequence[list[int]],
        num_decoding: int,
        adapters: Sequence[str | None],
        padding: Padding,
    ) -> Tensor:
        """[R, V]"""
        kv: Any = pool.store
        kv.written.clear()
        counts = [len(ids) for ids in new_ids]
        num_shared = pool.num_shared(num_decoding) if padding is NONE else 0
        ragged = plan(kv, pool.lengths, counts, num_decoding, padding, num_shared)
        ids = self._tensor([token for ids in new_ids for token in ids])
        last = self._tensor(counts).cumsum(0) - 1
        rows = padding.of_rows(len(ids))
        with self._adapters.applied(adapters, counts), self._mixers.mixing(kv.states, ragged):
            output = self._model(
                input_ids=padded(ids, rows)[None],
                position_ids=padded(ragged.positions, rows)[None],
                use_cache=False,
                logits_to_keep=padded(last, padding.of_rows(len(last))),
                ragged=ragged,
            )
        if sorted(kv.written) != sorted(self._survey.layers):
            raise ValueError("its layers compute attention another number of times at each pass")
        return output.logits[0, : len(counts)]

    @contextmanager
    def as_stock(self) -> Iterator[None]:
        """The model computes as transformers does meanwhile."""
        self._model.set_attn_implementation(STOCK)
        try:
            yield
        finally:
            self._model.set_attn_implementation(IMPLEMENTATION)

    def undo(self) -> None:
        """Leave the model to another way."""
        self._mixers.undo()
        self._model.set_attn_implementation(STOCK)

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(list(values), device=next(self._model.parameters()).device)
