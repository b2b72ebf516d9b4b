"""A probe of a model before it is trained: is it computed here as transformers computes it?

A family may ignore what keeps packed sequences apart, without an error. So each engine computes a
few short sequences at its start, packed and, with the attention of the model's own, one by one.
Invariants: packed sequences have the log-probs and the gradient of single ones; the output layer
has the model's logits; every trained weight has a gradient; or the model is refused by name and
nothing is trained. Windows are made shorter than the sequences meanwhile, so that they are seen.
All ranks compute the same. Imported by `trainer.engines.fsdp.engine`.
"""

import numpy as np
import torch
from torch import Tensor

from mainspring.algorithms.gap import Dtype
from mainspring.config.training.parallel import ParallelConfig
from mainspring.errors import ModelError
from trainer.engines.fsdp.packed_model import PackedModel
from trainer.engines.fsdp.sharding import whole
from trainer.engines.gradients import trained
from trainer.model.micro_batch import MicroBatch
from trainer.model.packing import PackedSequences
from trainer.model.processes import Processes
from trainer.model.scores import short_windows

LENGTHS = (19, 33, 12)
WINDOW = 8
"""Tokens of a window meanwhile, below each of the lengths."""
TOLERANCES = {Dtype.FLOAT32: (1e-3, 1e-3), Dtype.BFLOAT16: (0.5, 0.1)}
"""Largest difference of log-probs, and of gradients as a share of their norm. Families that leak
were 0.2 to 3 and 5 to 130 % off; rounding alone is below 1e-5 in float32, and 2 to 4 % of a
gradient in bfloat16."""
REMEDY = "use another model, or an engine that was made for this one"


def probe(model: PackedModel, parallel: ParallelConfig, processes: Processes, named: str) -> None:
    """Raises ModelError naming what is computed wrongly."""
    rng = np.random.default_rng(0)
    vocab_size = model.lm.get_output_embeddings().out_features
    rows = [rng.integers(0, vocab_size, length + 1) for length in LENGTHS]
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], sum(LENGTHS)).astype(np.float32))
    signs = signs.to(processes.device)
    try:
        with short_windows(model.lm, WINDOW):
            packed, of_packed = _pass(model, [rows], signs, processes)
            with model.own_attention():
                single = [[row] for row in rows]
                alone, of_alone = _pass(model, single, signs, processes, alone=True)
    except ModelError as error:
        raise ModelError(f"{named}: {error.message}", remedy=error.remedy) from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise ModelError(
            f"{named}: {type(model.lm).__name__} cannot compute packed sequences: {error}",
            remedy=REMEDY,
        ) from error
    model.zero_grad(set_to_none=True)
    most, most_of_gradient = TOLERANCES[parallel.dtype]
    if missing := sorted(of_packed.keys() ^ of_alone.keys()) or [
        name for name, _ in trained(model) if name not in of_packed
    ]:
        raise ModelError(
            f"{named}: weight {missing[0]} has no gradient, so ranks could not add it up",
            remedy=REMEDY,
        )
    gap = float((packed - alone).abs().max())
    if not gap <= most:
        raise ModelError(
            f"{named}: packed sequences have other log-probs than single ones (by {gap:.2g}): "
            f"{type(model.lm).__name__} lets tokens see other sequences, or its output layer "
            "computes more than the engine 'fsdp' knows",
            remedy=REMEDY,
        )
    share = _difference(of_packed, of_alone)
    if not share <= most_of_gradient:
        raise ModelError(
            f"{named}: packed sequences have another gradient than single ones ({share:.1%} of "
            f"its norm): {type(model.lm).__name__} cannot be trained by the engine 'fsdp'",
            remedy=REMEDY,
        )


def _pass(
    model: PackedModel,
    batches: list[list[np.ndarray]],
    signs: Tensor,
    processes: Processes,
    *,
    alone: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of all tokens, and this rank's shards of a gradient."""
    model.zero_grad(set_to_none=True)
    found, start = [], 0
    for rows in batches:
        batch = _micro_batch(rows, processes)
        logprobs, _ = model(batch, alone=alone)
        (logprobs * signs[start : start + len(logprobs)]).sum().backward()
        found.append(logprobs.detach())
        start += len(logprobs)
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return torch.cat(found), grads


def _micro_batch(rows: list[np.ndarray], processes: Processes) -> MicroBatch:
    def tensor(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))[None].to(processes.device)

    lengths = tuple(len(row) - 1 for row in rows)
    labels = tensor([row[1:] for row in rows])
    return MicroBatch(
        share=list(range(len(rows))),
        ids=tensor([row[:-1] for row in rows]),
        labels=labels,
        wanted=torch.ones_like(labels, dtype=torch.bool),
        sequences=PackedSequences(lengths),
        order_N=None,
        num_wanted_R=(sum(lengths),),
    )


def _difference(packed: dict[str, Tensor], alone: dict[str, Tensor]) -> float:
    """As a share of the norm, over all ranks."""

    def squared(grads: list[Tensor]) -> float:
        sums = [grad.double().square().sum() for grad in grads]
        return sum(float(whole(each)) for each in sums)

    apart = squared([packed[name] - grad for name, grad in alone.items()])
    return (apart / max(squared(list(alone.values())), 1e-30)) ** 0.5
