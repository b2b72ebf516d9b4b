"""What [trainer] computes from a batch: advantages, the loss, and how losses become one number.

Base of `mainspring.config.trainer.TrainerConfig`.
"""

from enum import StrEnum

from pydantic import Field

from mainspring.config.section import Section


class Aggregation(StrEnum):
    TOKEN_MEAN = "token_mean"
    """Sum over all action tokens of the batch, divided by their number (DAPO)."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean over samples of each sample's token mean (the original GRPO)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Mean over samples of each sample's token sum (Dr. GRPO up to a constant)."""


class AlgorithmConfig(Section):
    updates_per_step: int = Field(default=1, ge=1)
    """Passes over a step's batch, with one optimizer update each (PPO's epochs)."""
    advantage: str = "grpo"
    """How rewards of a group become advantages. "grpo": minus the group's mean, divided by its
    standard deviation. "dr_grpo": minus the mean only. Or a function of your own as
    "package.module:function"."""
    normalize_std: bool = True
    """Whether the advantage "grpo" divides by the group's standard deviation. If false, it is
    "dr_grpo"."""
    loss: str = "clip"
    """The loss of a token. "clip": PPO's clipped objective with an entropy bonus. Or a function of
    your own as "package.module:function"."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The probability ratio is clipped below at 1 - `clip_low`."""
    clip_high: float = Field(default=0.28, gt=0)
    """The probability ratio is clipped above at 1 + `clip_high` ("clip higher", DAPO)."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How the losses of all tokens become one number."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
