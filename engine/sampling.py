"""Logits to tokens and log-probabilities, one row per request.

Log-probs are those of the sampled token under log_softmax(logits / temperature) over the whole
vocabulary, before top-k, top-p and min-p cut it (SGLang's default); at temperature 0 under
log_softmax(logits). Penalties change the logits first, by the tokens of the reply alone and in
SGLang's order: frequency and presence are taken off, then the repetition penalty scales. Tokens
forbidden by `min_new_tokens` are removed before the softmax.
A request with `sampling_seed` draws from (seed, position): the same tokens whatever else runs.
"""

import random
from collections.abc import Sequence as Rows

import torch

from engine.sequences import SamplingOptions, Sequence


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: Rows[Sequence]) -> tuple[list[int], list[float]]:
    """logits [R, V] -> R token ids and their log-probs."""
    options = [row.options for row in rows]
    for index, row in enumerate(rows):
        if row.options.penalizes:
            logits[index] = _penalized(logits[index], row)
        if len(row.logprobs) < row.options.min_new_tokens:
            logits[index, list(row.stop_ids)] = float("-inf")
    device = logits.device
    greedy = torch.tensor([option.is_greedy for option in options], device=device)
    temperatures = torch.tensor(
        [1.0 if option.is_greedy else option.temperature for option in options], device=device
    )
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    if all(option.is_greedy for option in options):
        chosen = logits.argmax(-1)
    else:
        probs = logprobs.exp()
        # Those alone that ask for it: a row that cuts nothing does not depend on its neighbours.
        if cutting := [n for n, option in enumerate(options) if option.cuts_vocabulary]:
            probs[cutting] = _cut(probs[cutting], [options[n] for n in cutting])
        chosen = torch.where(greedy, logits.argmax(-1), _draw(probs, rows))
    return chosen.tolist(), logprobs.gather(1, chosen[:, None])[:, 0].tolist()


def _penalized(logits: torch.Tensor, row: Sequence) -> torch.Tensor:
    """logits [V] of one row, so that those beside it do not depend on it."""
    output = torch.tensor(row.output_ids, dtype=torch.long, device=logits.device)
    counts = torch.bincount(output, minlength=len(logits))
    is_there, options = counts > 0, row.options
    lowered = logits - options.frequency_penalty * counts - options.presence_penalty * is_there
    factor = options.repetition_penalty
    scaled = torch.where(lowered < 0, lowered * factor, lowered / factor)
    return torch.where(is_there, scaled, lowered)


def _draw(probs: torch.Tensor, rows: Rows[Sequence]) -> torch.Tensor:
    """Inverse-CDF sampling from unnormalised probs [R, V]."""
    uniform = torch.rand(len(rows), device=probs.device)
    for index, row in enumerate(rows):
        if row.options.sampling_seed is not None:
            uniform[index] = random.Random(f"{row.options.sampling_seed}:{len(row.ids)}").random()
    cdf = probs.cumsum(-1)
    total = cdf[:, -1]
    # Below the total, so that rounding never selects a token of probability zero.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target[:, None], right=True)[:, 0]


def _cut(probs: torch.Tensor, options: Rows[SamplingOptions]) -> torch.Tensor:
    """Zero what top-k, top-p and min-p exclude; each looks at the whole distribution."""
    vocabulary = probs.shape[-1]
    device = probs.device
    top_k = torch.tensor([o.top_k if o.top_k > 0 else vocabulary for o in options], device=device)
    top_p = torch.tensor([o.top_p for o in options], device=device)[:, None]
    min_p = torch.tensor([o.min_p for o in options], device=device)
    ordered, order = probs.sort(-1, descending=True)
    # A float32 sum reaches 1 before the least likely tokens: top_p = 1 keeps them all the same.
    keep = (ordered.cumsum(-1) - ordered < top_p) | (top_p >= 1)
    keep &= torch.arange(vocabulary, device=device) < top_k[:, None]
    keep &= ordered >= min_p[:, None] * ordered[:, :1]
    return torch.zeros_like(probs).scatter(-1, order, ordered * keep)
