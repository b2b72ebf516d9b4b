"""Log-prob and entropy of the wanted tokens, from the hidden states that predict them.

Logits exist for a few rows at a time and for wanted tokens only; but for the first KEPT_BYTES they
are computed again in the backward pass: with a vocabulary of 152k, logits of 32k tokens would take
20 GB. One function for one process and for an output weight cut along the vocabulary. Imported by
`trainer.model.policy_model`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from mainspring.artifacts.batch_invariance import ROW_BLOCK, whole_blocks
from mainspring.planning.activations import CHUNK_BYTES, KEPT_BYTES


@dataclass(frozen=True, slots=True)
class OutputLayer:
    """Layer that turns hidden states into log-probs, beside the weight."""

    vocab_size: int
    """Columns from it on are padding."""
    temperature: float
    tp_group: ProcessGroup | None
    """Whose ranks hold consecutive rows of the weight; None: this one holds all."""
    as_served: bool = False
    """Whether log-probs have the bits of the CPU engine's."""
    softcap: float | None = None
    """Bound of the logits' size, which a hyperbolic tangent keeps."""

    @property
    def start(self) -> int:
        """First token whose weight this rank holds, in numbers of shards."""
        return self.tp_group.rank() if self.tp_group is not None else 0


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, output: OutputLayer
) -> tuple[Tensor, Tensor]:
    """([N], [N]) float32 from [N, H] hidden states, the [V / tp, H] weight and [N] targets. The
    gradient of `hidden` is this rank's part: its sum over tensor parallelism is the caller's."""
    return _TokenLogprobs.apply(hidden, weight, targets, output)  # type: ignore[return-value]


def logprob_entropy(
    logits: Tensor,
    targets: Tensor,
    tp_group: ProcessGroup | None = None,
    *,
    first: int = 0,
    as_served: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each target, entropy and log of the sum of exponentials of each row: three [N]
    from float32 [N, V / tp]. Without gradient: `_TokenLogprobs` has it.

    `first`: the token of the first column; ranks hold consecutive ones. `as_served`: with the bits
    of the CPU engine's log-probs for equal logits; of whole rows only.
    """
    if as_served:
        assert tp_group is None or tp_group.size() == 1, "the engine's softmax needs whole rows"
        # Sums of exponentials in another order than the engine's have other bits.
        logprobs = torch.log_softmax(logits, dim=1)
        entropy = -torch.linalg.vecdot(logprobs.exp(), logprobs)
        of_targets = logprobs.gather(1, targets[:, None])[:, 0]
        return of_targets, entropy, torch.logsumexp(logits, dim=1)
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


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, output: OutputLayer
    ) -> tuple[Tensor, Tensor]:
        first = output.start * len(weight)
        vocab_weight = weight[: max(0, output.vocab_size - first)]
        step = _chunk_rows(len(vocab_weight))
        chunks: list[tuple[Tensor, Tensor, Tensor]] = []
        kept_logits: list[Tensor] = []
        num_bytes = 0
        for rows, ids in zip(hidden.split(step), targets.split(step), strict=True):
            logits = _logits(rows, vocab_weight, output)
            chunks.append(
                logprob_entropy(
                    logits, ids, output.tp_group, first=first, as_served=output.as_served
                )
            )
            num_bytes += logits.nbytes
            if any(ctx.needs_input_grad) and num_bytes <= KEPT_BYTES:
                kept_logits.append(logits)
        parts = list(zip(*chunks, strict=True)) or [[], [], []]
        logprobs, entropy, log_total = (
            torch.cat(list(part)) if part else hidden.new_zeros(0, dtype=torch.float32)
            for part in parts
        )
        ctx.save_for_backward(hidden, weight, targets, entropy, log_total, *kept_logits)
        ctx.output, ctx.first = output, first
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, targets, entropy, log_total, *kept_logits = ctx.saved_tensors
        vocab_weight = weight[: max(0, ctx.output.vocab_size - ctx.first)]
        grad_hidden = torch.zeros_like(hidden)
        # The parts of all chunks are added in float32, whatever the weight's dtype.
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        if grad_entropy is not None and not grad_entropy.any():
            grad_entropy = None  # of a loss that does not use it: both travel in one tensor
        step = _chunk_rows(len(vocab_weight))
        for number, start in enumerate(range(0, len(hidden), step)):
            rows = slice(start, min(start + step, len(hidden)))
            if number < len(kept_logits):
                logits = kept_logits[number]
            else:
                logits = _logits(hidden[rows], vocab_weight, ctx.output)
            logprobs = logits - log_total[rows, None]
            slope = _slope(logits, ctx.output)
            del logits
            # The entropy's part reads both numbers of a chunk again; else they are written over.
            in_place = grad_entropy is None
            probs = logprobs.exp_() if in_place else logprobs.exp()
            if grad_logprobs is None:
                grad = torch.zeros_like(probs)
            else:
                factor = -grad_logprobs[rows, None]
                grad = probs.mul_(factor) if in_place else probs * factor
                local = targets[rows] - ctx.first
                here = (local >= 0) & (local < len(vocab_weight))
                index = torch.where(here, local, 0)[:, None]
                if len(vocab_weight):
                    grad.scatter_add_(1, index, (grad_logprobs[rows] * here)[:, None])
            if grad_entropy is not None:
                # dH/dz = -p (log p + H)
                surprise = logprobs + entropy[rows, None]
                grad -= grad_entropy[rows, None] * probs * surprise
            if ctx.output.temperature != 1.0:
                grad /= ctx.output.temperature
            if slope is not None:
                grad *= slope
            grad = grad.to(weight.dtype)
            torch.mm(grad, vocab_weight, out=grad_hidden[rows])
            if weight.dtype is torch.float32:
                grad_weight[: len(vocab_weight)].addmm_(grad.t(), hidden[rows])
            else:
                grad_weight[: len(vocab_weight)] += grad.t() @ hidden[rows]
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _logits(rows: Tensor, weight: Tensor, output: OutputLayer) -> Tensor:
    """Float32 logits of some rows at the policy's temperature."""
    if output.as_served:
        num_rows = len(rows)
        rows = F.pad(rows, (0, 0, 0, whole_blocks(num_rows, ROW_BLOCK) - num_rows))
        logits = F.linear(rows, weight)[:num_rows]
    else:
        logits = F.linear(rows, weight)
    logits = logits.float()
    if output.softcap is not None:
        logits = torch.tanh(logits / output.softcap) * output.softcap
    return logits / output.temperature if output.temperature != 1.0 else logits


def _slope(logits: Tensor, output: OutputLayer) -> Tensor | None:
    """Derivative of bounded logits; None of unbounded ones."""
    if output.softcap is None:
        return None
    return 1.0 - (logits * (output.temperature / output.softcap)).square()


def _chunk_rows(num_columns: int) -> int:
    """Whole blocks, so that chunks change no bits of a served row."""
    return max(1, CHUNK_BYTES // (4 * max(1, num_columns)) // ROW_BLOCK) * ROW_BLOCK
