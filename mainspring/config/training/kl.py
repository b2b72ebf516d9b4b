"""Section [trainer.kl] of a campaign file: a penalty for leaving the reference.

What the estimators compute is in `trainer.losses.kl`.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from mainspring.config.section import LARGE, Section, Within


class KlEstimator(StrEnum):
    K1 = "k1"
    """log(current / reference): unbiased, may be negative. Its gradient as a part of the loss is 0
    on average: use it in the reward."""
    K2 = "k2"
    """Half of the square of k1: biased, and its gradient is that of the true divergence."""
    K3 = "k3"
    """reference / current - 1 + k1: unbiased, never negative."""


class KlPlace(StrEnum):
    LOSS = "loss"
    """Added to the loss of each token, under the current weights, with gradient."""
    REWARD = "reward"
    """A penalty in the reward, as in RLHF: each token's advantage loses the penalties of this token
    and of all later ones of its branch, so that a token pays for the divergence that it leads to.
    Under the step's first weights or as served (`proximal`), without gradient, and after the
    advantages are normalised: `coef` is in units of the advantage. With the estimator "k1" its
    expected gradient is that of the divergence of whole sequences."""


class KlConfig(Section):
    """KL(policy || reference) of each token that the loss is taken over, where `coef` is not 0. The
    reference is the campaign's policy version 0; each rank keeps a copy of its weights in the
    host's memory, and computes its log-probs once in a step."""

    coef: Annotated[float, Within(le=1000)] = Field(default=0.0, ge=0)
    """Weight of the penalty; 0: there is none, and no reference is kept."""
    estimator: KlEstimator = KlEstimator.K3
    """Estimate of a token's divergence from its log-probs. Unset with `where = "reward"`: "k1"."""
    where: KlPlace = KlPlace.LOSS
    """Where the penalty counts."""
    clamp: Annotated[float | None, Within(le=LARGE)] = Field(default=10.0, gt=0)
    """Bound on the size of one token's estimate, in nats; beyond it, a token has no gradient."""
