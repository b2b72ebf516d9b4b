"""Contents of a report, as plain values: nothing here asks Postgres or knows HTML or plots.

Invariants: rates are fractions over what could be scored (masked rollouts are in no denominator);
None means "not measured", never zero; lists are in order of step or version.
"""

from dataclasses import dataclass, field
from datetime import datetime

from infra.db.reading.agents import AgentFigures
from infra.db.reading.evaluations import CheckedGap, Evaluation
from infra.db.reading.task_sets import SetFigures
from infra.db.reading.timings import PhaseTiming
from infra.db.reading.trained_steps import Composition, Lengths, Step
from infra.db.runs.campaign_record import Parent
from infra.db.runs.events import EventRecord
from infra.db.training.sft import StoredSftData
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.files.changes import FieldChange
from mainspring.status import CampaignStatus, Sampling, StopReason, Verdict
from mainspring.training.step_metrics import CLIP_NAMES, TAKEN_NAMES

HELDOUT_TEMPLATES = "heldout_templates"


@dataclass(frozen=True, slots=True)
class RanCommand:
    command: str
    returncode: int
    """-1: killed at its timeout."""
    output: str


@dataclass(frozen=True, slots=True)
class ShownTurn:
    reply: str
    commands: tuple[RanCommand, ...] = ()
    """Those that ran, in their order."""


@dataclass(frozen=True, slots=True)
class ShownTrajectory:
    rollout: str
    task: str
    issue: str
    policy_version: int
    reward: float | None
    verdict: Verdict | None
    stop_reason: StopReason | None
    turns: tuple[ShownTurn, ...]
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
    replaced_turns_share: float | None = None
    """Share of replaced groups in the turns of all training groups; None before the first turn."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """Samples and result of a supervised run."""

    data: StoredSftData
    num_steps: int
    """Steps of the whole run."""
    model: str | None
    """Hugging Face directory of its newest version; None before the first."""


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
    faults: dict[str, int] = field(default_factory=dict)
    """Rollouts by what masked them; the most frequent kinds, each with one fault's words."""
    agents: tuple[AgentFigures, ...] = ()
    """Figures of each agent, of a run that several play."""
    sets: tuple[SetFigures, ...] = ()
    """Figures of each task set, of a campaign that has several sources."""
    checked_gaps: tuple[CheckedGap, ...] = ()
    suspicions: dict[str, int] = field(default_factory=dict)
    """Rollouts by kind; one rollout may be of several."""
    bundles: dict[str, int] = field(default_factory=dict)
    """Rollouts by the SHA-256 of the bundle that their program ran from."""
    trajectories: tuple[ShownTrajectory, ...] = ()
    fingerprint: CampaignFingerprint | None = None
    """Fingerprint of a reproducible campaign."""
    supervised: Supervised | None = None
    """Samples and result of a supervised run."""
    warnings: tuple[str, ...] = ()
    """Warnings from the figures of its steps."""
    parent: Parent | None = None
    """The campaign that it was forked from."""
    changes: tuple[FieldChange, ...] = ()
    """Changes of what the campaign runs with."""
    judge_warnings: tuple[str, ...] = ()
    """Warnings of judges whose votes cannot be read, or that gave none."""
    events: tuple[EventRecord, ...] = ()
    """The newest events, the oldest first."""

    @property
    def suspects(self) -> list[ShownTrajectory]:
        """Suspects of the trajectories shown."""
        return [trajectory for trajectory in self.trajectories if trajectory.suspicions]

    @property
    def own_figures(self) -> list[str]:
        """Names of what the loss measured beyond what every loss is measured by."""
        if self.supervised is not None:
            return []
        names = {name for step in self.steps for name in step.metrics}
        return sorted(names - TAKEN_NAMES - {*CLIP_NAMES})

    def evaluated(self, split: str, sampling: Sampling) -> list[Evaluation]:
        """Evaluations of one kind that scored anything, oldest version first."""
        scored = [
            evaluation
            for evaluation in self.evaluations
            if (evaluation.split, evaluation.sampling) == (split, sampling)
            and evaluation.solve_rate is not None
        ]
        return sorted(scored, key=lambda evaluation: evaluation.version)

    @property
    def further(self) -> list[str]:
        """Labels of what was measured beside the main split and unseen bug types: other splits,
        and other sources."""
        labels = dict.fromkeys(evaluation.split for evaluation in self.evaluations)
        return [label for label in labels if label not in (self.main_split, HELDOUT_TEMPLATES)]

    def before_after(self, split: str, sampling: Sampling) -> tuple[float | None, float | None]:
        """Solve rate of the first policy and of the newest evaluated one; None where missing."""
        scored = self.evaluated(split, sampling)
        before = scored[0].solve_rate if scored and scored[0].version == 0 else None
        after = scored[-1].solve_rate if scored and scored[-1].version > 0 else None
        return before, after
