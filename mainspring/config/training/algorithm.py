"""Computations of [trainer] on a batch: advantages, the loss, and how losses become one number.

Base of `mainspring.config.trainer.TrainerConfig`. Sections of their own: `correction`, `kl`.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from mainspring.config.section import LARGE, MANY, MANY_TOKENS, Counts, Section, Within
from mainspring.config.training.correction import NO_CORRECTION, CorrectionConfig
from mainspring.config.training.critic import CriticConfig
from mainspring.config.training.kl import KlConfig, KlPlace

GAE = "gae"
"""Name of the advantage that needs a critic."""


class Std(StrEnum):
    POPULATION = "population"
    """Mean square over the group, plus 1e-4."""
    UNBIASED = "unbiased"
    """Sum of squares divided by one less than the group, plus 1e-6, as verl and slime have it."""
    NONE = "none"
    """Nothing is divided: the advantage is "dr_grpo"."""


class Samples(StrEnum):
    BRANCH = "branch"
    """A branch: all turns that extend one another. Each turn's tokens are computed once."""
    CALL = "call"
    """One reply after all that came before it: shorter at the end, and more tokens to compute."""


class Overlong(StrEnum):
    KEEP = "keep"
    """They are trained on as others are."""
    MASK = "mask"
    """Their tokens are not trained on; their rewards still count in their group's mean."""


class Proximal(StrEnum):
    SERVED = "served"
    """As the engine sampled them: nothing is computed for it."""
    RECOMPUTED = "recomputed"
    """By the trainer under the step's first weights: one more forward pass over the batch."""


class Aggregation(StrEnum):
    TOKEN_MEAN = "token_mean"
    """Sum over all action tokens of the batch, divided by their number (DAPO)."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean over rollouts of each one's token mean (the original GRPO). In this and in those below a
    rollout counts once: each of its B branches has the weight 1/B."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Mean over rollouts of each one's token sum (Dr. GRPO up to a constant)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"
    """Mean over rollouts of each one's token sum divided by `aggregation_length` (Dr. GRPO)."""


class AlgorithmConfig(Section):
    updates_per_step: Annotated[int, Within(le=1000), Counts.STEPS] = Field(default=1, ge=1)
    """Passes over a step's batch (PPO's epochs), with one optimizer update for each of its
    `mini_batches`."""
    mini_batches: Annotated[int, Within(le=MANY), Counts.STEPS] = Field(default=1, ge=1)
    """Number of parts of the batch, each with an optimizer update and a denominator of its own. The
    batch's n-th rollout is in part n modulo this number, with all its branches."""
    advantage: str = "grpo"
    """How rewards of a group become advantages. "grpo": minus the group's mean, divided by its
    standard deviation. "dr_grpo": minus the mean only. "rloo": minus the mean of the others.
    "reinforce_plus_plus": minus the batch's mean, divided by the batch's standard deviation.
    "reinforce_plus_plus_baseline": minus the group's mean, divided by the batch's standard
    deviation. "raft": 1 where the reward is at least `keep_reward`, else 0: rejection sampling,
    with the loss "nll". "step_wise": each turn's reward, and the rollout's for its end, is compared
    with those of the turns of the same number in the group. "gae": generalized advantage
    estimation by a critic, PPO; it needs [trainer.critic]. The filter is chosen with it, unless it
    is set. Or a function of your own as "package.module:function"."""
    turn_discount: Annotated[float, Within()] = Field(default=1.0, gt=0, le=1)
    """Factor of a rollout's reward for its end in the advantage "step_wise", for each turn that
    follows the one that is compared."""
    keep_reward: Annotated[float, Within(ge=-LARGE, le=LARGE)] = 1.0
    """Minimum reward of the rollouts that the advantage "raft" keeps."""
    std: Std = Std.POPULATION
    """Standard deviation that the advantages "grpo" and "step_wise" divide by; "step_wise" adds
    1e-6 to each."""
    samples: Samples = Samples.BRANCH
    """Sequences that a step trains on. Both train each token that the policy sampled once, after
    what it was sampled after, and have the same gradients; but the loss "gspo" and the correction
    "sequence_mask" have a ratio for each sample."""
    overlong: Annotated[Overlong, Counts.STEPS] = Overlong.KEEP
    """Fate of rollouts that a limit on turns, context, time or cost cut off."""
    loss: str = "clip"
    """The loss of a token; all have the entropy bonus. "clip": PPO's clipped objective.
    "dual_clip": with a bound for negative advantages, too. "cispo": clipped importance weights, and
    every token keeps its gradient. "gspo": the clipped objective with one ratio for each sample, of
    its tokens' geometric mean; unset, its bounds are 0.0003 and 0.0004, and the aggregation is
    "seq_mean_token_mean". "nll": the negative log-likelihood times the advantage, without a ratio.
    Or a function of your own as "package.module:function"."""
    clip_low: Annotated[float, Within(), Counts.STEPS] = Field(default=0.2, gt=0, le=1)
    """The probability ratio is clipped below at 1 - `clip_low`; with 1 it is not. Unset with the
    loss "gspo": 0.0003."""
    clip_high: Annotated[float, Within(le=LARGE), Counts.STEPS] = Field(default=0.28, gt=0)
    """The probability ratio is clipped above at 1 + `clip_high` ("clip higher", DAPO). Unset with
    the loss "gspo": 0.0004."""
    dual_clip: Annotated[float, Within(le=LARGE), Counts.STEPS] = Field(default=3.0, gt=1)
    """Bound of the ratio for negative advantages, of the loss "dual_clip"."""
    proximal: Proximal = Proximal.SERVED
    """Log-probs that the current ones are compared with in the loss's ratio."""
    correction: CorrectionConfig = CorrectionConfig()
    kl: KlConfig = KlConfig()
    critic: CriticConfig | None = None
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How the losses of all tokens become one number. Unset with the loss "gspo":
    "seq_mean_token_mean"."""
    aggregation_length: Annotated[int | None, Within(le=MANY_TOKENS)] = Field(default=None, ge=1)
    """Number of tokens that the aggregation "seq_mean_token_sum_norm" divides by, such as
    `policy.max_context`."""
    entropy_coef: Annotated[float, Within(le=1000), Counts.STEPS] = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""

    @model_validator(mode="after")
    def _a_correction_compares_two_log_probs(self) -> Self:
        if self.correction.kind != NO_CORRECTION and self.proximal is Proximal.SERVED:
            raise ValueError(
                f'correction.kind = "{self.correction.kind}" compares recomputed log-probs with '
                'served ones: set proximal = "recomputed", or remove [trainer.correction]'
            )
        return self

    @model_validator(mode="after")
    def _a_penalty_in_the_reward_needs_what_follows(self) -> Self:
        if self.samples is Samples.CALL and self.kl.coef and self.kl.where is KlPlace.REWARD:
            raise ValueError(
                'kl.where = "reward" has a token pay for all that follows on its branch, which is '
                'in other samples with samples = "call": set samples = "branch", or kl.where = '
                '"loss"'
            )
        return self

    @model_validator(mode="after")
    def _a_critic_makes_the_advantages(self) -> Self:
        if self.advantage == GAE and self.critic is None:
            raise ValueError(
                f'advantage = "{GAE}" needs a critic: add the section [trainer.critic] (it may be '
                "empty), or choose another advantage"
            )
        if self.critic is None:
            return self
        if self.advantage != GAE:
            raise ValueError(
                f'[trainer.critic] would do nothing with advantage = "{self.advantage}": set '
                f'advantage = "{GAE}", or remove the section'
            )
        if self.kl.coef and self.kl.where is KlPlace.REWARD:
            raise ValueError(
                'kl.where = "reward" changes advantages that the critic has made, not the rewards '
                'it makes them of: set kl.where = "loss"'
            )
        return self

    @model_validator(mode="after")
    def _a_constant_length_is_given(self) -> Self:
        needed = self.aggregation is Aggregation.SEQ_MEAN_TOKEN_SUM_NORM
        if needed and self.aggregation_length is None:
            raise ValueError(
                'aggregation = "seq_mean_token_sum_norm" divides by a constant number of tokens: '
                "set aggregation_length, for example to policy.max_context"
            )
        return self
