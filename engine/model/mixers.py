"""Layers beside attention that read a sequence token by token, in a ragged pass.

Such a mixer gets the decoding requests as a batch, and every other request by itself, each with the
states of its slot. Found by what they are built of, a convolution over the sequence, not by the
name of a family; what is not found shows as a difference in `forward_check`. Imported by
`slot_pass`.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from engine.model.adapters import Adapters
from engine.model.attention import Ragged
from engine.model.states import SlotStates

_CACHES = ("cache_params", "past_key_values")
_HIDDEN = "hidden_states"
_MASK = "attention_mask"


class Mixers:
    def __init__(self, model: nn.Module, adapters: Adapters) -> None:
        """Raises ValueError for a mixer that takes no cache."""
        self._adapters = adapters
        self._pass: MixerPass | None = None
        self.found: list[Any] = [
            module
            for module in model.modules()
            if any(isinstance(child, nn.Conv1d) for child in module.children())
        ]
        for module in self.found:
            self._wrap(module)

    @contextmanager
    def mixing(self, states: SlotStates, ragged: Ragged) -> Iterator[None]:
        """Mixers compute this pass meanwhile; without one they compute as transformers does."""
        if not self.found:
            yield
            return
        self._pass = MixerPass(states, ragged)
        try:
            yield
            self._pass.note_kept()
        finally:
            self._pass = None

    def undo(self) -> None:
        for module in self.found:
            vars(module).pop("forward", None)

    def _wrap(self, module: nn.Module) -> None:
        inner = module.forward
        signature = inspect.signature(inner)
        name = next((name for name in _CACHES if name in signature.parameters), None)
        if name is None or _HIDDEN not in signature.parameters:
            raise ValueError(f"{type(module).__name__} takes no cache")
        layer: Any = module.layer_idx

        def forward(*args: Any, **options: Any) -> Tensor:
            if self._pass is None:
                return inner(*args, **options)
            options |= zip(signature.parameters, args, strict=False)
            hidden = options.pop(_HIDDEN)
            options.pop(_MASK, None)  # of padding, of which there is none

            def run(part: Tensor, cache: DynamicCache) -> Tensor:
                return inner(**{_HIDDEN: part, **options, name: cache})

            return self._pass.through(layer, hidden, run, self._adapters)

        module.forward = forward


class MixerPass:
    def __init__(self, states: SlotStates, ragged: Ragged) -> None:
        self._states = states
        self._ragged = ragged
        self._decoding = states.cache(0, ragged.num_decoding, begins=False)
        self._prefills = [
            states.cache(row.slot, row.slot + 1, begins=not row.start) for row in ragged.prefills
        ]

    def through(
        self,
        layer: int,
        hidden: Tensor,
        run: Callable[[Tensor, DynamicCache], Tensor],
        adapters: Adapters,
    ) -> Tensor:
        """hidden [1, N, H] -> [1, N, H]."""
        out = []
        if decoding := self._ragged.num_decoding:
            with adapters.from_row(0):
                mixed = run(hidden[0, :decoding, None], self._decoding)
            out.append(mixed.transpose(0, 1))
        for row, cache in zip(self._ragged.prefills, self._prefills, strict=True):
            # The state before the last token is kept: requests with the same prompt begin there.
            before = row.last - 1
            if before > row.first:
                with adapters.from_row(row.first):
                    out.append(run(hidden[:, row.first : before], cache))
            if row.start + row.num_new > 1:
                self._states.keep(row.slot, layer)
            with adapters.from_row(before):
                out.append(run(hidden[:, before : row.last], cache))
        return torch.cat(out, dim=1)

    def note_kept(self) -> None:
        for row in self._ragged.prefills:
            self._states.kept_lengths[row.slot] = row.start + row.num_new - 1
