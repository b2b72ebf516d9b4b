"""Attention's scores where no kernel of torch computes them, and which keys a query sees.

Shared by the packed attention of the engine `fsdp` and by the policy server, so that a sliding
window, a cap and a sink mean the same in both. Plain functions of tensors; imports nothing of the
project.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

SHORT = ("sliding_window", "attention_chunk_size")
"""Fields that bound how far a layer looks back."""


def seen(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """[queries, keys] whether a query sees a key, by their positions in a sequence."""
    distance = queries[:, None] - keys
    near = distance >= 0
    return near if window is None else near & (distance < window)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is seen, else -inf."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention by its definition: all scores of a block exist. `mask` is additive; `sinks`, with
    one value for each query, are scores of a key whose value is 0."""
    scores = query @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks[..., None].to(scores.dtype)], dim=-1)
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (shares if sinks is None else shares[..., :-1]) @ value


@contextmanager
def short_windows(lm: Any, length: int) -> Iterator[None]:
    """No layer of `lm` looks back further than `length` tokens meanwhile, if it has a bound: a few
    tokens then show whether the bound is computed."""
    holders = {id(holder): holder for holder in (lm.config, lm.config.get_text_config())}
    for module in lm.modules():
        for holder in (module, getattr(module, "config", None)):
            if holder is not None:
                holders[id(holder)] = holder
    before = [
        (holder, name, bound)
        for holder in holders.values()
        for name in SHORT
        if isinstance(bound := getattr(holder, name, None), int) and bound > length
    ]
    for holder, name, _ in before:
        setattr(holder, name, length)
    try:
        yield
    finally:
        for holder, name, bound in before:
            setattr(holder, name, bound)
