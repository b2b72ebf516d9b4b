"""How far each token's policy is from the reference: estimates from two log-probs. Pure.

Source: J. Schulman, "Approximating KL divergence" (2020); k3 as in GRPO, arXiv 2402.03300. With the
clamp of 10, k3 equals verl's "low_var_kl"; k1 and k2 without a clamp equal its "kl" and "mse".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mainspring.config.training.kl import KlConfig, KlEstimator
from trainer.losses.objective import bounded


def to_come(values: Tensor, num_tokens_N: Sequence[int]) -> Tensor:
    """[T] of each token: the sum over itself and all later tokens of its sample.

    What a reward of -value for each token makes of its return: a token pays for the divergence that
    it leads to. With the estimator k1 the expected policy gradient is that of the divergence of
    whole sequences. As OpenRLHF's returns of REINFORCE++ and verl's `apply_kl_penalty` with
    "reinforce_plus_plus"."""
    parts = values.double().split(list(num_tokens_N))
    return torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts]).to(values.dtype)


def kl_of(logprobs: Tensor, reference_logprobs: Tensor, kl: KlConfig) -> Tensor:
    """[T] estimates of KL(current || reference), with the gradient of `logprobs`."""
    difference = bounded(logprobs - reference_logprobs)
    match kl.estimator:
        case KlEstimator.K1:
            estimate = difference
        case KlEstimator.K2:
            estimate = difference.square() / 2
        case KlEstimator.K3:
            estimate = torch.expm1(-difference) + difference
    return estimate if kl.clamp is None else estimate.clamp(-kl.clamp, kl.clamp)
