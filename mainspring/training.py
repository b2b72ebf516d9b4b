"""What training measures: the shapes that trainer, store and report agree on. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Means are over action tokens of samples that carry advantage; the others are not computed."""

    loss: float
    grad_norm: float
    """Before clipping."""
    entropy: float
    """nats per token"""
    ratio_mean: float
    """Current over served probability."""
    clip_fraction: float
    """Tokens whose gradient the clip cut off."""
    kl: float
    """KL(rollout || current) per token, the estimator that is never negative (k3)."""
    kl_k1: float
    """The same, unbiased and noisier (k1)."""
    num_tokens: int
    """Action tokens the loss was taken over."""
    num_samples: int
    """Samples that carry advantage."""
    lr: float
    """AdamW's rate at this step."""
    logprob_gap_max: float
    """Largest |served - recomputed| over tokens sampled under the weights the step began with."""
    num_gap_tokens: int
    """How many such tokens there were; 0 means that nothing was compared."""
    seconds: float


@dataclass(frozen=True, slots=True)
class LogprobGap:
    """|served - recomputed| over the tokens of one policy version."""

    max: float
    mean: float
    num_tokens: int
