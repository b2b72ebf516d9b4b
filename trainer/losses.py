"""The policy loss: pure functions on packed 1-D tensors of action tokens, [T].

Invariants: no model, no process group, no device. Every token's weight in the batch's mean is
fixed by `token_weights` before the batch is cut into micro-batches, so the sum of the parts'
losses and gradients is the batch's, however it was cut and over however many ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mainspring.config.trainer import Aggregation


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Sums over the given tokens, to be added up over micro-batches and ranks."""

    loss: Tensor
    """Scalar with gradient: already divided by the batch's denominator."""
    entropy: float
    ratio: float
    num_clipped: int
    """Tokens whose gradient the clip cut off."""
    kl_k1: float
    """Estimates KL(rollout || current) by its definition: unbiased, may be negative."""
    kl_k3: float
    """The same, never negative and of low variance (Schulman 2020)."""
    num_tokens: int


def token_weights(aggregation: Aggregation, num_tokens_N: Sequence[int]) -> list[float]:
    """Weight of each action token of sample n in the batch's loss, from all samples' lengths."""
    if not num_tokens_N:
        return []
    if any(num_tokens < 1 for num_tokens in num_tokens_N):
        raise ValueError("a sample without action tokens has no place in the loss")
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            return [1 / sum(num_tokens_N)] * len(num_tokens_N)
        case Aggregation.SEQ_MEAN_TOKEN_MEAN:
            return [1 / (len(num_tokens_N) * num_tokens) for num_tokens in num_tokens_N]
        case Aggregation.SEQ_MEAN_TOKEN_SUM:
            return [1 / len(num_tokens_N)] * len(num_tokens_N)


def policy_loss(
    logprobs: Tensor,
    entropy: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    entropy_coef: float = 0.0,
) -> PolicyLoss:
    """PPO's clipped objective with separate bounds, and an entropy bonus. All tensors are [T].

    The served log-probs are the old log-probs, in every update on the batch.
    """
    log_ratio = logprobs - rollout_logprobs
    ratio = log_ratio.exp()
    free = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    objective = torch.minimum(free, clipped)
    if entropy_coef:
        objective = objective + entropy_coef * entropy
    loss = -torch.dot(objective, weights)
    with torch.no_grad():
        return PolicyLoss(
            loss=loss,
            entropy=float(entropy.sum()),
            ratio=float(ratio.sum()),
            num_clipped=int((clipped < free).sum()),
            kl_k1=float(-log_ratio.sum()),
            kl_k3=float((ratio - 1 - log_ratio).sum()),
            num_tokens=len(logprobs),
        )
