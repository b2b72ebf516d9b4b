"""pass@k over tasks with confidence intervals. Pure.

pass@k is the unbiased estimator of Chen et al. (2021): the chance that at least one of k of a
task's samples, drawn without replacement, is resolved, averaged over tasks. Its interval is
Wilson's over tasks, not over samples: samples of one task are not independent, and tasks are what a
benchmark draws. It is exact in spirit where each task gives 0 or 1 (k = 1 with one sample each, or
k = all samples), errs on the wide side in between (no mean of numbers within [0, 1] varies more),
and unlike a bootstrap it needs no seed and is not empty where no task, or every task, is resolved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

Z_95 = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


@dataclass(frozen=True, slots=True)
class PassAtK:
    k: int
    value: float
    low: float
    """Ends of the 95 % interval."""
    high: float
    num_tasks: int
    """Tasks with at least k samples that could be scored; the others are left out."""


def pass_at_k(num_samples: int, num_resolved: int, k: int) -> float:
    """Pass@k of one task. Raises ValueError unless 0 <= num_resolved <= num_samples and
    1 <= k <= num_samples."""
    if not (0 <= num_resolved <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"pass@{k} of {num_resolved} resolved in {num_samples} samples")
    return 1.0 - comb(num_samples - num_resolved, k) / comb(num_samples, k)


def pass_at_each_k(counts: Sequence[tuple[int, int]]) -> list[PassAtK]:
    """For every k that some task has samples for; `counts`: (samples, resolved) of each task."""
    estimates = []
    for k in range(1, max((samples for samples, _ in counts), default=0) + 1):
        values = [pass_at_k(samples, resolved, k) for samples, resolved in counts if samples >= k]
        value = sum(values) / len(values)
        estimates.append(PassAtK(k, value, *wilson(value, len(values)), len(values)))
    return estimates


def wilson(share: float, num: int) -> tuple[float, float]:
    """The 95 % score interval of a share of `num`; the share is never outside it."""
    spread = Z_95**2 / num
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * sqrt(share * (1 - share) / num + spread / (4 * num))
    # At shares of 0 and 1 an end is the share itself, and rounding may put it beyond.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
