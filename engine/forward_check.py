"""Whether the engine computes what the model does: compared at each start, never assumed.

Two requests are cut into pieces and run beside each other through slots, as a scheduler runs them;
every result is compared with the model's own forward over the whole sequences, without slots. State
outside attention, attention of another kind, or a layer that keeps nothing in its slot shows as a
difference. Four passes of a few tokens: milliseconds for a small model, a few reads of the weights
for a large one. What shows only in longer sequences (windows, frequencies that change with length)
is judged by the config before, and by the arguments that attention gets. Used by `served_model`.
"""

from collections import Counter
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.attention import IMPLEMENTATION
from engine.slots import KvShape, SlotPool

TOLERANCE = 1e-4
"""Tolerance of log-probs in float32; right ones differ by 1e-6."""
NOISE = 10
"""Times what the model's two own forwards differ by: a large model's sums are less exact."""
NUM_LOOKED_AT = 64
"""Likeliest tokens of each place: the tail's log-probs are large, and hardly ever sampled."""
CUTS = ((7, 3), (1, 5), (1, 1))
"""New tokens of both requests in each pass, and how many of the requests decode in it."""
NUM_DECODING = (0, 1, 2)
LENGTH = 9


class ForwardModel(Protocol):
    vocab_size: int

    def kv_shape(self, max_length: int | None = None) -> KvShape: ...

    def forward(self, pool: SlotPool, new_ids: list[list[int]], num_decoding: int) -> Tensor: ...


@torch.inference_mode()
def problem(served: ForwardModel, model: Any) -> str | None:
    """One sentence about what differs, or None. `model`: the one of transformers in `served`."""
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(served.vocab_size, (2, LENGTH), generator=source)
    whole = _whole(model, ids, "eager")
    pool = SlotPool(2, served.kv_shape(LENGTH))
    places, largest = [0, 0], 0.0
    for cut, num_decoding in zip(CUTS, NUM_DECODING, strict=True):
        ends = [place + count for place, count in zip(places, cut, strict=True)]
        new = [ids[n, places[n] : ends[n]].tolist() for n in range(2)]
        logprobs = torch.log_softmax(served.forward(pool, new, num_decoding), -1)
        if wrong := _wrong_layers(pool):
            return wrong
        for n, end in enumerate(ends):
            expected = whole[n, end - 1]
            likeliest = expected.topk(min(NUM_LOOKED_AT, len(expected))).indices
            difference = (logprobs[n] - expected)[likeliest].abs().max()
            if not torch.isfinite(difference):
                return "its log-probs are no numbers"
            largest = max(largest, float(difference))
        places = ends
    if largest <= TOLERANCE or largest <= NOISE * _noise(model, ids, whole):
        return None
    return (
        f"its log-probs differ by {largest:.1e} from those of the whole sequence computed at once"
    )


def _wrong_layers(pool: SlotPool) -> str | None:
    """Each layer keeps its keys and values once in a pass."""
    counted = Counter(pool.written)
    for layer in range(pool.num_layers):
        if counted[layer] != 1:
            return f"its layer {layer} computes attention {counted[layer]} times, expected once"
    return None


def _whole(model: Any, ids: Tensor, implementation: str) -> Tensor:
    """Log-probs [2, LENGTH, V] by the model's own forward."""
    model.set_attn_implementation(implementation)
    try:
        return torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), -1)
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _noise(model: Any, ids: Tensor, whole: Tensor) -> float:
    try:
        again = _whole(model, ids, "sdpa")
    except ValueError:  # the architecture has one way alone
        return 0.0
    likeliest = whole.topk(min(NUM_LOOKED_AT, whole.shape[-1]), -1).indices
    return float((again - whole).gather(-1, likeliest).abs().max())
