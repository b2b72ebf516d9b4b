"""What a report shows, as plain values: nothing here knows Postgres, HTML or plots.

Invariants: rates are fractions over what could be scored (masked rollouts are in no denominator);
None means "not measured", never zero; lists are in order of step or version.
"""

from dataclasses import dataclass, field
from datetime import datetime

from mainspring.status import CampaignStatus, StopReason, Verdict
from mainspring.step_metrics import TAKEN_NAMES

SAMPLED = "sampled"
GREEDY = "greedy"
HELDOUT_TEMPLATES = "heldout_templates"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy version on one split, with one way of sampling."""

    version: int
    split: str
    sampling: str
    num_tasks: int
    num_resolved: int
    num_masked: int = 0
    finished_at: datetime | None = field(default=None, compare=False)
    """When its last rollout ended."""

    @property
    def solve_rate(self) -> float | None:
        scored = self.num_tasks - self.num_masked
        return self.num_resolved / scored if scored > 0 else None


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step; step n made policy version n."""

    step: int
    reward_mean: float | None = None
    solve_rate: float | None = None
    """Of the rollouts the step was trained on."""
    mixed_groups: int | None = None
    """Groups with both solved and unsolved rollouts: the only ones that carry a gradient."""
    entropy: float | None = None
    grad_norm: float | None = None
    loss: float | None = None
    kl: float | None = None
    clip_fraction: float | None = None
    logprob_gap_max: float | None = None
    """Largest difference of served and recomputed log-prob under the same weights."""
    num_gap_tokens: int | None = None
    """Tokens the gap was measured on."""
    train_s: float | None = None
    lr: float | None = None
    staleness_mean: float | None = None
    """Policy versions between sampling and training, token-weighted."""
    all_zero_groups: int | None = None
    """Groups of the batch none of whose rollouts resolved the task."""
    all_one_groups: int | None = None
    """Groups of the batch whose rollouts all resolved it."""
    masked_rollouts: int | None = None
    """Rollouts of the batch's groups that could not be scored."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Everything that the trainer measured, by name."""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean length of the rollouts one step was trained on."""

    step: int
    num_turns: float
    num_tokens: float
    """Sampled tokens of a rollout, over all its turns."""


@dataclass(frozen=True, slots=True)
class Composition:
    """What the rollouts one step was trained on were rewarded for."""

    step: int
    parts: dict[str, float]
    """Mean of each part of the reward, before its weight."""
    suspicious: float
    """Share of the rollouts that look like cheating."""


@dataclass(frozen=True, slots=True)
class PhaseTiming:
    """How long rollouts spent in one phase."""

    phase: str
    count: int
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class RanCommand:
    command: str
    returncode: int
    """-1: killed at its timeout."""
    output: str


@dataclass(frozen=True, slots=True)
class Turn:
    reply: str
    commands: tuple[RanCommand, ...] = ()
    """Those that ran, in their order."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    rollout: str
    task: str
    issue: str
    policy_version: int
    reward: float | None
    verdict: Verdict | None
    stop_reason: StopReason | None
    turns: tuple[Turn, ...]
    reward_parts: dict[str, float | None] = field(default_factory=dict)
    suspicions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    num_steps: int
    num_rollouts: int
    num_turns: int
    wall_s: float
    max_logprob_gap: float | None
    num_gap_tokens: int = 0
    num_suspicious: int = 0
    """Rollouts that look like cheating."""
    num_groups_masked: int = 0
    """Training groups replaced because too few of their rollouts were scored."""
    num_groups_flat: int = 0
    """Training groups replaced because their rewards were equal."""


@dataclass(frozen=True, slots=True)
class ReportData:
    campaign: str
    status: CampaignStatus
    seed: int
    made_at: datetime
    config: dict[str, str]
    """The few settings a reader wants first, by label."""
    temporal_ui: str
    """Base URL of Temporal's web UI; empty: no links."""
    temporal_namespace: str
    totals: Totals
    logprob_gap_limit: float | None
    """None: the maximum is not bounded (bfloat16 engines)."""
    evaluations: tuple[Evaluation, ...] = ()
    main_split: str = "heldout"
    """The split the headline solve rate is measured on."""
    steps: tuple[Step, ...] = ()
    lengths: tuple[Lengths, ...] = ()
    compositions: tuple[Composition, ...] = ()
    timings: tuple[PhaseTiming, ...] = ()
    stop_reasons: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    checked_gaps: tuple[tuple[int, float], ...] = ()
    """(policy version, log-prob gap) of the evaluations that were checked."""
    suspicions: dict[str, int] = field(default_factory=dict)
    """Rollouts by kind; one rollout may be of several."""
    trajectories: tuple[Trajectory, ...] = ()

    @property
    def suspects(self) -> list[Trajectory]:
        """Of the trajectories shown."""
        return [each for each in self.trajectories if each.suspicions]

    @property
    def own_figures(self) -> list[str]:
        """Names of what the loss measured beyond what every loss is measured by."""
        found = {name for step in self.steps for name in step.metrics}
        return sorted(found - TAKEN_NAMES - {"clip_fraction"})

    def evaluated(self, split: str, sampling: str) -> list[Evaluation]:
        """Evaluations of one kind that scored anything, oldest version first."""
        found = [
            each
            for each in self.evaluations
            if (each.split, each.sampling) == (split, sampling) and each.solve_rate is not None
        ]
        return sorted(found, key=lambda each: each.version)

    def before_after(self, split: str, sampling: str) -> tuple[float | None, float | None]:
        """Solve rate of the first policy and of the newest evaluated one; None where missing."""
        found = self.evaluated(split, sampling)
        before = found[0].solve_rate if found and found[0].version == 0 else None
        after = found[-1].solve_rate if found and found[-1].version > 0 else None
        return before, after
