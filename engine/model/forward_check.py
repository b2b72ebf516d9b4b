"""Whether the engine computes what the model does: compared at each start, never assumed.

Two requests are cut into pieces and run beside each other through slots, as a scheduler runs them,
and a third continues one of them; every result is compared with the model's own forward over the
whole sequences, without slots. State outside attention, attention of another kind, or a layer that
keeps nothing shows as a difference. A few passes of a few tokens: milliseconds for a small model, a
few reads of the weights for a large one. Windows are made shorter than the sequences meanwhile, so
that they are seen; frequencies that change with length are judged by the config before. Used by
`served_model`.
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.model.key_values import Heads
from engine.model.padding import Padding
from engine.model.slots import KvShape, SlotPool
from trainer.model.scores import short_windows

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Largest difference of log-probs; right ones differ by 1e-6 in float32."""
NOISE = 10
"""Times what the model's two own forwards differ by: a large model's sums are less exact."""
NUM_LOOKED_AT = 64
"""Likeliest tokens of each place: the tail's log-probs are large, and hardly ever sampled."""
LENGTH = 16
WINDOW = 4
"""Tokens of a window meanwhile."""
CUTS = ((9, 3), (1, 7), (1, 1), (1, 1))
"""New tokens of both requests in each pass, and how many of the requests decode in it."""
NUM_DECODING = (0, 1, 2, 2)
CONTINUED = (14, 15)
"""Tokens of two requests that begin with all tokens but the last of what a slot has, or with a part
of them."""


class ForwardWay(Protocol):
    """How requests are computed: what is kept of them, and the logits after new tokens."""

    name: str

    @property
    def attention(self) -> Set[tuple[int, Heads]]:
        """Heads of queries, and what is kept of a token, of layers that differ in these."""
        ...

    def shape(self, max_length: int) -> KvShape: ...

    def pool(self, num_slots: int, max_length: int) -> SlotPool: ...

    def logits(
        self,
        pool: SlotPool,
        new_ids: Sequence[list[int]],
        num_decoding: int,
        adapters: Sequence[str | None],
        padding: Padding,
    ) -> Tensor: ...

    def inexact(self, max_length: int) -> str | None:
        """Part that has other bits than the trainer's; None: there is none."""
        ...

    def as_stock(self) -> AbstractContextManager[None]:
        """The model computes as transformers does meanwhile."""
        ...

    def undo(self) -> None:
        """Leave the model to another way."""
        ...


@torch.inference_mode()
def problem(way: ForwardWay, model: Any, vocab_size: int, padding: Padding) -> str | None:
    """One sentence about what differs, or None."""
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (2, LENGTH), generator=source)
    with short_windows(model, WINDOW):
        with way.as_stock():
            whole = _whole(model, ids)
        largest = 0.0
        for n, place, logits in _served(way, ids, padding):
            expected = whole[n, place - 1]
            likeliest = expected.topk(min(NUM_LOOKED_AT, len(expected))).indices
            logprobs = torch.log_softmax(logits.float(), -1)
            difference = (logprobs - expected)[likeliest].abs().max()
            if not torch.isfinite(difference):
                return "its log-probs are no numbers"
            largest = max(largest, float(difference))
        dtype = next(model.parameters()).dtype
        if largest <= TOLERANCES[dtype] or largest <= NOISE * _noise(way, model, ids, whole):
            return None
    return (
        f"its log-probs differ by {largest:.1e} from those of the whole sequence computed at once"
    )


def _served(way: ForwardWay, ids: Tensor, padding: Padding) -> Iterator[tuple[int, int, Tensor]]:
    """Which sequence, how many of its tokens, and the logits [V] after them."""
    pool = way.pool(3, padding.of_keys(LENGTH))

    def run(new: list[list[int]], num_decoding: int) -> Tensor:
        logits = way.logits(pool, new, num_decoding, [None] * len(new), padding)
        pool.extend(new)
        return logits

    for cut, num_decoding in zip(CUTS, NUM_DECODING, strict=True):
        places = [(n, pool.lengths[n], pool.lengths[n] + count) for n, count in enumerate(cut)]
        logits = run([ids[n, start:end].tolist() for n, start, end in places], num_decoding)
        for n, _, end in places:
            yield n, end, logits[n]
    for length in CONTINUED:
        pool.release(0)
        begun = ids[0, :length].tolist()
        pool.occupy(0, pool.longest_prefix(begun))
        yield 0, length, run([begun[pool.lengths[0] :]], 0)[0]


def _whole(model: Any, ids: Tensor) -> Tensor:
    """Log-probs [2, LENGTH, V] by the model's own forward."""
    device = next(model.parameters()).device
    return torch.log_softmax(model(input_ids=ids.to(device), use_cache=False).logits.float(), -1)


def _noise(way: ForwardWay, model: Any, ids: Tensor, whole: Tensor) -> float:
    try:
        with way.as_stock():
            model.set_attn_implementation("sdpa")
            again = _whole(model, ids)
    except (ValueError, ImportError):  # the architecture has one way alone
        return 0.0
    likeliest = whole.topk(min(NUM_LOOKED_AT, whole.shape[-1]), -1).indices
    return float((again - whole).gather(-1, likeliest).abs().max())
