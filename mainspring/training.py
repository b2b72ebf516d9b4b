"""What a step measures: the shape that trainer, store and report agree on. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMetrics:
    loss: float
    grad_norm: float
    entropy: float
    """Mean over the action tokens that were run forward, in nats."""
    ratio_mean: float
    """Mean of current over served probability of the action tokens."""
    clip_fraction: float
    kl: float
    """k3 estimate between served and current policy (http://joschu.net/blog/kl-approx.html)."""
    num_tokens: int
    """Action tokens in the loss's denominator."""
    num_samples: int
    lr: float
    logprob_gap_max: float
    """Largest gap on tokens sampled under exactly the weights the step started from."""
    num_gap_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LogprobGap:
    max: float
    mean: float
    num_tokens: int
