"""Input of a trainer and measurements of a step: shapes that trainer, store and report agree on.

Pure. docs/metrics.md has a line for every figure, which a test compares with the names here.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace

from pydantic import BaseModel, ConfigDict

from mainspring.algorithms.gap import LogprobGap
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import FieldChange, at_step
from mainspring.ids import CampaignId, campaign_id
from mainspring.training.trained_rollouts import StepDetails, worst


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
    """As it was stored."""
    origin: Origin
    epoch: int
    """Epoch of the lease; a newer one has taken over."""
    changes: tuple[FieldChange, ...] = ()
    """Made since then."""
    last_step: int | None = None
    """The last step of a campaign that trains another one's batches again; None: it is none."""
    rescores: bool = False
    """Rewards of its batches are computed from what is stored, as it has another reward."""

    def at(self, step: int) -> CampaignConfig:
        """The configuration for a step, which counts from 1."""
        return at_step(self.config, self.changes, step)

    def is_last(self, step: int) -> bool:
        """Whether no step follows."""
        return step == (self.last_step or self.at(step).trainer.num_steps)

    @property
    def campaign(self) -> CampaignId:
        return campaign_id(self.config.name)


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
    lr: float | None
    """AdamW's rate at this step; None when the policy did not move."""
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
    """Figures that the loss names, such as `clip_fraction`, and PASS_NAMES: means as above.
    CRITIC_NAMES where there is a critic."""
    loss_policy: float | None = None
    """Value of the campaign's loss, without the two parts below."""
    loss_kl: float | None = None
    """Term of the KL penalty; None where the loss has none."""
    loss_entropy: float | None = None
    """Term of the entropy bonus, negative; None without one. A loss of your own has it in
    `loss_policy`."""
    logprob_gap_p50: float | None = None
    logprob_gap_p99: float | None = None
    num_trained_tokens: int = 0
    """That went through forward and backward pass: prompts and observations too, in each pass."""
    rank_memory_peak_gib: float | None = field(default=None, compare=False)
    """Memory of the rank that needed most."""
    gradient: str | None = None
    """See `mainspring.artifacts.fingerprint`; None unless the campaign is reproducible. Not a
    figure."""
    flops: float | None = None
    """Operations that the model needs for the trained tokens; None: unknown. Not a figure."""
    peak_flops: float | None = None
    """Operations a second of all ranks' devices together; None: unknown. Not a figure."""
    details: StepDetails = field(default=StepDetails(), compare=False)
    """The worst tokens, of all ranks together, and a critic's advantages. Not a figure."""

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_trained_tokens / self.seconds if self.seconds else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation."""
        if not (self.flops and self.peak_flops and self.seconds):
            return None
        return self.flops / (self.seconds * self.peak_flops)

    @property
    def figures(self) -> dict[str, float | None]:
        """Every figure by name, as the store keeps it."""
        fixed = asdict(replace(self, details=StepDetails()))
        for name in ("gradient", "flops", "peak_flops", "details"):
            del fixed[name]
        derived = {"tokens_per_s": self.tokens_per_s, "mfu": self.mfu, "compute_s": self.seconds}
        return fixed | fixed.pop("values") | derived

    @property
    def gap(self) -> LogprobGap:
        return LogprobGap(
            max=self.logprob_gap_max,
            mean=self.logprob_gap_mean,
            p999=self.logprob_gap_p999,
            k3=self.logprob_gap_k3,
            num_tokens=self.num_gap_tokens,
            p50=self.logprob_gap_p50,
            p99=self.logprob_gap_p99,
        )


def of_all_ranks(ranks: Sequence[StepMetrics]) -> StepMetrics:
    """Metrics of one step over all ranks: means are over the batch already, the first rank has
    them; memory and peaks are each rank's own."""
    memory = [rank.rank_memory_peak_gib for rank in ranks]
    peaks = [rank.peak_flops for rank in ranks]
    return replace(
        ranks[0],
        rank_memory_peak_gib=max(
            (peak_gib for peak_gib in memory if peak_gib is not None), default=None
        ),
        peak_flops=None if None in peaks else sum(flops or 0.0 for flops in peaks),
        details=replace(
            ranks[0].details,
            gaps=worst(gap for rank in ranks for gap in rank.details.gaps),
            kept={n: kept for rank in ranks for n, kept in rank.details.kept.items()},
        ),
    )


@dataclass(frozen=True, slots=True)
class StepClock:
    """When a step took place, by the store's clock."""

    trainer_idle_s: float
    """From the commit of the version it began with until its batch was planned."""
    since_before_s: float
    """From the same commit until now."""
    engine_idle_s: float | None
    """Part of that time in which no engine had a request of the campaign; None: it asks none."""
    engine_request_s: float | None
    """The requests' times at engines in that time, added up; None likewise."""

    def figures(self, num_tokens: int) -> dict[str, float | None]:
        """`num_tokens`: action tokens the step's loss was taken over."""
        since_s, request_s = self.since_before_s, self.engine_request_s
        mean = None if request_s is None or since_s <= 0 else request_s / since_s
        return {
            "trainer_idle_s": self.trainer_idle_s,
            "engine_idle_s": self.engine_idle_s,
            "engine_requests_mean": mean,
            "goodput": num_tokens / since_s if since_s > 0 else None,
        }


CRITIC_NAMES = frozenset(
    {"value_loss", "value_mean", "value_explained_variance", "value_clip_fraction"}
    | {"critic_grad_norm"}
)
"""Names of figures of a critic, where the campaign has one."""
MACHINE_NAMES = frozenset(
    {"seconds", "compute_s", "tokens_per_s", "mfu", "goodput", "trainer_idle_s"}
    | {"engine_idle_s", "engine_requests_mean", "rank_memory_peak_gib"}
)
"""Names of figures that depend on the machine and its load; all others repeat when a step does."""


@dataclass(frozen=True, slots=True)
class SupervisedMetrics:
    """Measurements of a step of a supervised run."""

    loss: float
    """Negative log-likelihood: the mean over all trained tokens of the batch, before the step."""
    grad_norm: float
    """Before clipping."""
    lr_scale: float
    """Share of the configured rates that the step moved at."""


TAKEN_NAMES = frozenset(
    {metric.name for metric in fields(StepMetrics)}
    | MACHINE_NAMES
    | CRITIC_NAMES
    | {"reward_mean", "mixed_groups", "staleness_mean", "staleness_max", "num_stale_tokens_masked"}
    | {"num_overlong_masked"}
    | {"staleness_0", "staleness_1", "staleness_2", "staleness_3plus"}
    | {"kind", "campaign", "step", "policy_version", "time", "resolve_rate", "all_zero_groups"}
    | {"all_one_groups", "masked_rollouts", "turns_mean", "sampled_tokens_mean"}
    | {"suspicious_share"}
)
"""Names of a step's other figures (`activities.training.step_batch`, `reports.metrics`): no loss
may use them."""
CLIP_NAMES = ("clip_fraction", "clip_fraction_low", "clip_fraction_high", "clip_fraction_dual")
NLL = "nll"
"""Figure that Mainspring's losses name."""
PASS_NAMES = frozenset({"correction_cut", "kl_reference"})
"""Names of figures that the pass adds to the loss's, where the campaign asks for them: the share of
tokens that the correction cut, and the mean KL(current || reference). No loss may use them."""
