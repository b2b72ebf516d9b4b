"""One update of the weights, by the gradients that backward passes left. Imported by the rank and
by `trainer.step.policy_step`."""

import math

from mainspring.training.training_faults import NonFiniteStep
from trainer.engines.protocol import StepOptimizer


def update(optimizer: StepOptimizer, scale: float, campaign: str, step: str) -> float:
    """Move at `scale` times the configured rates; the gradient's norm before clipping. Raises
    NonFiniteStep, and then this update has moved nothing; earlier ones of the step have moved the
    rank's weights, which are loaded again. `step`: which one, for the message."""
    norm = optimizer.reduce_and_clip()
    if not math.isfinite(norm):
        optimizer.zero_grad()
        raise NonFiniteStep(
            f"campaign {campaign}, {step}: the gradient's norm is {norm}; the campaign's weights "
            "stay those of the version before it",
            remedy="look for infinite log-probs in its rollouts, then drop the batch with "
            f"`mainspring campaign drop-batch {campaign}`, or start a campaign with a "
            "lower learning rate",
        )
    optimizer.step(scale)
    return norm
