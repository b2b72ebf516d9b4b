"""What a trainer is given and what a step measures: shapes that trainer, store and report agree on.
Pure.
"""

from dataclasses import asdict, dataclass, field, fields

from pydantic import BaseModel, ConfigDict

from mainspring.algorithms.gap import LogprobGap
from mainspring.config.campaign import CampaignConfig


class Origin(BaseModel):
    """Which campaign weights come from, beyond its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign: str
    uid: str
    config_digest: str

    def __str__(self) -> str:
        digest = self.config_digest[:12]
        return f"campaign {self.campaign} (uid {self.uid}, configuration {digest})"


@dataclass(frozen=True, slots=True)
class TrainerJob:
    """A campaign, as the trainer that holds its lease works on it."""

    config: CampaignConfig
    origin: Origin
    epoch: int
    """Of the lease; a newer one has taken over."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Means are over action tokens of samples that carry advantage; the others are not computed.
    A figure that was measured on no token is None."""

    loss: float | None
    grad_norm: float | None
    """Before clipping; None when nothing moved."""
    entropy: float | None
    """nats per token"""
    ratio_mean: float | None
    """Current over served probability."""
    kl: float | None
    """KL(rollout || current) per token, the estimator that is never negative (k3)."""
    kl_k1: float | None
    """The same, unbiased and noisier (k1)."""
    num_tokens: int
    """Action tokens the loss was taken over."""
    num_samples: int
    """Samples that carry advantage."""
    lr: float
    """AdamW's rate at this step."""
    logprob_gap_max: float | None
    """Largest |served - recomputed| over the batch's tokens that were sampled under the weights
    the step began with, whether their sample carries advantage or not."""
    logprob_gap_mean: float | None
    logprob_gap_p999: float | None
    """99.9 % of these tokens stay below."""
    logprob_gap_k3: float | None
    """KL(served || recomputed) per token over these tokens."""
    num_gap_tokens: int
    """How many such tokens there were; 0 means that nothing was compared."""
    seconds: float
    values: dict[str, float | None] = field(default_factory=dict)
    """What the loss names, such as `clip_fraction`, and PASS_NAMES; means as above, none of
    TAKEN_NAMES."""
    gradient: str | None = None
    """See `mainspring.fingerprint`; None unless the campaign is reproducible. Not a figure."""

    @property
    def figures(self) -> dict[str, float | None]:
        """Every figure by name, as the store keeps it."""
        fixed = asdict(self)
        del fixed["gradient"]
        return fixed | fixed.pop("values")

    @property
    def gap(self) -> LogprobGap:
        return LogprobGap(
            max=self.logprob_gap_max,
            mean=self.logprob_gap_mean,
            p999=self.logprob_gap_p999,
            k3=self.logprob_gap_k3,
            num_tokens=self.num_gap_tokens,
        )


@dataclass(frozen=True, slots=True)
class SupervisedMetrics:
    """What a step of a supervised run measures."""

    loss: float
    """Negative log-likelihood: the mean over all trained tokens of the batch, before the step."""
    grad_norm: float
    """Before clipping."""
    lr_scale: float
    """Share of the configured rates that the step moved at."""


TAKEN_NAMES = frozenset(
    {each.name for each in fields(StepMetrics)}
    | {"reward_mean", "mixed_groups", "staleness_mean", "staleness_max", "num_stale_tokens_masked"}
    | {"num_overlong_masked"}
    | {"staleness_0", "staleness_1", "staleness_2", "staleness_3plus"}
    | {"kind", "campaign", "step", "policy_version", "time", "resolve_rate", "all_zero_groups"}
    | {"all_one_groups", "masked_rollouts", "turns_mean", "sampled_tokens_mean"}
    | {"suspicious_share"}
)
"""Of a step's other figures (`activities.step_batch`, `reports.metrics`): no loss may use them."""
PASS_NAMES = frozenset({"correction_cut", "kl_reference"})
"""Of figures that the pass adds to those of the loss, where the campaign asks for them: the share
of tokens that the correction cut, and the mean KL(current || reference). No loss may use them."""
