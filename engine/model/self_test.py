"""The self-test of a reproducible engine: bits that depend on company are refused, not served.

What libraries promise about bits is less than what the engine promises, so it looks, at each start,
on this machine and with this model's shapes: every product with several numbers of rows, attention
with several lengths of keys, and whole requests alone and in company. It pads no further than these
looks ask for. Inputs come from a generator of its own: torch's is left as it is. Imported by
`engine.server` and tests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from engine.model.key_values import Heads
from engine.model.padding import Padding, padded
from engine.model.served_model import ServedModel
from mainspring.artifacts.batch_invariance import MKL_VARIABLE, ROW_BLOCK, mkl_branch
from mainspring.artifacts.cpu import this_cpu
from mainspring.errors import EngineError

CHOICES = (1, 4, ROW_BLOCK)
"""Rows to pad to, cheapest first: Intel's with STRICT need none, AMD's 4, Intel's without 16."""
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 100)
"""On both sides of every number at which a library was seen to change its kernel."""
LENGTHS = (1, 15, 16, 17, 100, 300, 385, 511, 512, 513)
"""Numbers of keys: with and without a rest of 16, on both sides of 384 and of a block."""
QUERIES = (1, 2, 3, 4, 7, 17, 33, 193)
"""Prompt tokens that attend at once: attention takes 32 or 64 of them together, and the rest."""
PROMPTS = (20, 3, 41)
"""Tokens of the requests that are run together: few, as a large model takes its time."""
NUM_DECODED = 3

Product = Callable[[Tensor, Tensor], Tensor]
"""x [M, K], weight [N, K] -> [M, N]."""


@torch.inference_mode()
def check(model: ServedModel) -> None:
    """Find the padding that is enough for `model`, and use it. Raises EngineError."""
    weights = model.linear_weights()
    problems: list[str] = []
    padding = model.padding
    for choice in CHOICES:
        padding = replace(padding, rows=choice)
        problems = list(products_that_differ(weights, engine_product(padding)))
        if not problems:
            break
    else:
        raise _depends(model, problems)
    for choice in CHOICES:
        padding = replace(padding, queries=choice)
        problems = [
            problem
            for num_queries, heads in model.attention()
            for problem in lengths_that_differ(heads, num_queries, padding)
        ]
        if not problems:
            break
    else:
        raise _depends(model, problems)
    model.padding = padding
    if problems := list(requests_that_differ(model)):
        raise _depends(model, problems)


def _depends(model: ServedModel, problems: Sequence[str]) -> EngineError:
    stamp = model.stamp
    return EngineError(
        f"model directory {model.directory}: results on this machine depend on what is computed "
        f"beside them, by {len(problems)} of the engine's own checks: {problems[0]} ({stamp.cpu}, "
        f"{MKL_VARIABLE} = {stamp.mkl_cbwr or 'not set'})",
        remedy=f"start it with {MKL_VARIABLE}={mkl_branch(this_cpu())} in the environment, or on "
        'another kind of machine, or without --reproducible for schedule = "fastest"',
    )


def engine_product(padding: Padding) -> Product:
    """As a step of the engine has it."""

    def product(x: Tensor, weight: Tensor) -> Tensor:
        return linear(padded(x, padding.of_rows(len(x))), weight)[: len(x)]

    return product


def products_that_differ(weights: Sequence[Tensor], product: Product) -> Iterator[str]:
    """One sentence for each shape and number of rows whose rows get other bits."""
    source = _source()
    for weight in {tuple(weight.shape): weight for weight in weights}.values():
        x = torch.randn(max(ROWS), weight.shape[1], generator=source)
        together = product(x, weight)
        for count in ROWS:
            places = [slice(first, first + count) for first in (0, len(x) - count)]
            if not all(torch.equal(product(x[rows], weight), together[rows]) for rows in places):
                yield f"a product with {list(weight.shape)} of {count} rows and of {len(x)}"


def lengths_that_differ(heads: Heads, num_queries: int, padding: Padding) -> Iterator[str]:
    """One sentence for each number of keys whose result depends on the padding behind them, on the
    queries beside, or on the requests beside."""
    source = _source()
    longest = padding.of_keys(max(LENGTHS)) + padding.keys
    group = num_queries // heads.num_heads
    keys, values = (
        torch.randn(3, heads.num_heads, longest, width, generator=source)
        for width in (heads.key_width, heads.value_width)
    )
    size = (3, heads.num_heads, group * max(QUERIES), heads.key_width)
    queries = torch.randn(size, generator=source)

    def attend(num_requests: int, num_tokens: int, length: int, num_keys: int) -> Tensor:
        """Attention of the first request, [kv_heads, group * num_tokens, head_dim]."""
        num_queries = group * num_tokens
        mask = torch.zeros(num_requests, 1, 1, num_keys)
        mask[..., length:] = float("-inf")
        attended = scaled_dot_product_attention(
            padded(queries[:num_requests, :, :num_queries], padding.of_queries(num_queries), 2),
            keys[:num_requests, :, :num_keys],
            values[:num_requests, :, :num_keys],
            attn_mask=mask,
        )
        return attended[0, :, :num_queries]

    for length in LENGTHS:
        num_keys = padding.of_keys(length)
        together = attend(1, max(QUERIES), length, num_keys)
        looks = [(1, count, num_keys) for count in QUERIES]
        looks += [(3, 1, num_keys), (1, 1, longest), (3, max(QUERIES), longest)]
        for num_requests, count, until in looks:
            alone = attend(num_requests, count, length, until)
            if not torch.equal(alone, together[:, : alone.shape[1]]):
                yield f"attention of {count} tokens of {num_requests} requests over {length} keys"
                break


def requests_that_differ(model: ServedModel) -> Iterator[str]:
    """One sentence for each pass of a request whose logits are others than in company."""
    source = _source()
    ids = [
        torch.randint(model.vocab_size, (length + NUM_DECODED,), generator=source).tolist()
        for length in PROMPTS
    ]
    together = _logits(model, ids)
    for number, alone in enumerate(ids):
        for step, logits in enumerate(_logits(model, [alone])):
            if not torch.equal(logits[0], together[step][number]):
                yield f"a request of {PROMPTS[number]} tokens, pass {step + 1}"
    again = model.forward(model.pool(1), [ids[0]], 0)
    if not torch.equal(again[0], together[-1][0]):
        yield f"a request of {PROMPTS[0]} tokens, computed again from its tokens"


def _logits(model: ServedModel, ids: Sequence[list[int]]) -> list[Tensor]:
    """[R, V] after the prompts, and after each of the NUM_DECODED tokens behind them."""
    pool = model.pool(len(ids))
    logits = [model.forward(pool, [prompt[:-NUM_DECODED] for prompt in ids], 0)]
    for n in range(-NUM_DECODED, 0):
        logits.append(model.forward(pool, [[prompt[n]] for prompt in ids], len(ids)))
    return logits


def _source() -> torch.Generator:
    return torch.Generator().manual_seed(0)
