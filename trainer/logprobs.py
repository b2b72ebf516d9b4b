"""Log-probability and entropy of next tokens from logits that may be cut along the vocabulary.

One function for one process and for tensor parallelism; its gradient needs no communication.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def logprob_entropy(
    logits_shard: Tensor,
    targets: Tensor,
    tp_group: ProcessGroup | None = None,
    vocab_size: int = 0,
    *,
    as_served: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution: ([T], [T]) from [T, V / tp].

    Ranks hold consecutive columns. Columns from `vocab_size` on (0: none) are padding: the
    softmax does not see them. `as_served`: with the bits of the CPU engine's log-probs for equal
    logits; of whole rows only.
    """
    rank = tp_group.rank() if tp_group else 0
    start = rank * logits_shard.shape[1]
    if vocab_size:
        logits_shard = logits_shard[:, : max(0, vocab_size - start)]
    if tp_group is not None and tp_group.size() == 1:
        tp_group = None
    assert tp_group is None or not as_served, "the engine's log-softmax needs whole rows"
    function = _ServedLogprobEntropy if as_served else _LogprobEntropy
    return function.apply(logits_shard.float(), targets - start, tp_group)  # type: ignore[return-value]


class _LogprobEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, local_targets: Tensor, group: ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        num_tokens, width = logits.shape
        peak = logits.new_full((num_tokens,), -torch.inf)
        if width:
            peak = logits.amax(dim=1)
        if group is not None:
            dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        shifted = logits - peak[:, None]
        probs = shifted.exp()
        here = (local_targets >= 0) & (local_targets < width)
        index = torch.where(here, local_targets, 0)
        picked = shifted.new_zeros(num_tokens)
        if width:
            picked = torch.where(here, shifted.gather(1, index[:, None])[:, 0], 0.0)
        # sum of exp, sum of exp * logit and the target's logit travel in one reduction
        sums = torch.stack([probs.sum(dim=1), torch.linalg.vecdot(probs, shifted), picked])
        if group is not None:
            dist.all_reduce(sums, group=group)
        total, weighted, target = sums
        log_total = total.log()
        probs.div_(total[:, None])
        entropy = log_total - weighted / total
        ctx.save_for_backward(probs, shifted, log_total, entropy, here, index)
        ctx.set_materialize_grads(False)
        return target - log_total, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor, None, None]:
        probs, shifted, log_total, entropy, here, index = ctx.saved_tensors
        grad = torch.zeros_like(probs)
        if grad_logprob is not None:
            grad = probs * -grad_logprob[:, None]
            if probs.shape[1]:
                grad.scatter_add_(1, index[:, None], (grad_logprob * here)[:, None])
        if grad_entropy is not None:
            # dH/dz = -p (log p + H)
            surprise = shifted - log_total[:, None] + entropy[:, None]
            grad -= grad_entropy[:, None] * probs * surprise
        return grad, None, None


class _ServedLogprobEntropy(_LogprobEntropy):
    """Forward through torch.log_softmax, which the engine uses: sums of exponentials in another
    order have other bits. The gradient is the same formula."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, local_targets: Tensor, group: ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(logits, dim=1)
        probs = logprobs.exp()
        entropy = -torch.linalg.vecdot(probs, logprobs)
        here = torch.ones_like(local_targets, dtype=torch.bool)
        log_total = logprobs.new_zeros(len(logprobs))
        ctx.save_for_backward(probs, logprobs, log_total, entropy, here, local_targets)
        ctx.set_materialize_grads(False)
        return logprobs.gather(1, local_targets[:, None])[:, 0], entropy
