"""How far each token's policy is from the reference: estimates from two log-probs. Pure.

Source: J. Schulman, "Approximating KL divergence" (2020); k3 as in GRPO, arXiv 2402.03300. With the
clamp of 10, k3 equals verl's "low_var_kl"; k1 and k2 without a clamp equal its "kl" and "mse".
"""

import torch
from torch import Tensor

from mainspring.config.kl import KlConfig, KlEstimator

MAX_DIFFERENCE = 20.0
"""Of two log-probs: the exponential of more may be infinite, and its gradient not a number."""


def kl_of(logprobs: Tensor, reference_logprobs: Tensor, kl: KlConfig) -> Tensor:
    """[T] estimates of KL(current || reference), with the gradient of `logprobs`."""
    difference = (logprobs - reference_logprobs).clamp(-MAX_DIFFERENCE, MAX_DIFFERENCE)
    match kl.estimator:
        case KlEstimator.K1:
            found = difference
        case KlEstimator.K2:
            found = difference.square() / 2
        case KlEstimator.K3:
            found = torch.expm1(-difference) + difference
    return found if kl.clamp is None else found.clamp(-kl.clamp, kl.clamp)
