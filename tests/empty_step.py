"""Figures of a step that trained nothing, for tests of what is around a step."""

from mainspring.training.step_metrics import StepMetrics

EMPTY_STEP = StepMetrics(
    loss=None,
    grad_norm=None,
    entropy=None,
    ratio_mean=None,
    kl=None,
    kl_k1=None,
    num_tokens=0,
    num_samples=0,
    lr=0.1,
    logprob_gap_max=None,
    logprob_gap_mean=None,
    logprob_gap_p999=None,
    logprob_gap_k3=None,
    num_gap_tokens=0,
    seconds=0.0,
)
