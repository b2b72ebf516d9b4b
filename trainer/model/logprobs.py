"""Log-probability and entropy of next tokens from logits that may be cut along the vocabulary.

One function for one process and for tensor parallelism. No gradient: `trainer.model.token_logprobs`
has it, from what is returned here.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def logprob_entropy(
    logits: Tensor,
    targets: Tensor,
    tp_group: ProcessGroup | None = None,
    *,
    first: int = 0,
    as_served: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each target, entropy and log of the sum of exponentials of each row: three [N]
    from float32 [N, V / tp].

    `first`: the token of the first column; ranks hold consecutive ones. `as_served`: with the bits
    of the CPU engine's log-probs for equal logits; of whole rows only.
    """
    if as_served:
        assert tp_group is None or tp_group.size() == 1, "the engine's softmax needs whole rows"
        # Sums of exponentials in another order than the engine's have other bits.
        logprobs = torch.log_softmax(logits, dim=1)
        entropy = -torch.linalg.vecdot(logprobs.exp(), logprobs)
        found = logprobs.gather(1, targets[:, None])[:, 0]
        return found, entropy, torch.logsumexp(logits, dim=1)
    num_rows, width = logits.shape
    is_cut = tp_group is not None and tp_group.size() > 1
    peak = logits.amax(dim=1) if width else logits.new_full((num_rows,), -torch.inf)
    if is_cut:
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=tp_group)
    shifted = logits - peak[:, None]
    probs = shifted.exp()
    local = targets - first
    here = (local >= 0) & (local < width)
    picked = shifted.new_zeros(num_rows)
    if width:
        index = torch.where(here, local, 0)[:, None]
        picked = torch.where(here, shifted.gather(1, index)[:, 0], 0.0)
    # sum of exp, sum of exp * logit and the target's logit travel in one reduction
    sums = torch.stack([probs.sum(dim=1), torch.linalg.vecdot(probs, shifted), picked])
    if is_cut:
        dist.all_reduce(sums, group=tp_group)
    total, weighted, target = sums
    log_total = total.log()
    return target - log_total, log_total - weighted / total, log_total + peak
