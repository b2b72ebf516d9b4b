"""What one optimizer step reports. Plain data, without torch: it travels to the store."""

from pydantic import BaseModel, ConfigDict


class StepMetrics(BaseModel):
    """Means are over action tokens of samples that carry advantage; the others are not computed."""

    model_config = ConfigDict(frozen=True)

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
