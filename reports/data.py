"""A run's figures as plain values: nothing here asks Postgres or knows a screen.

Invariants: rates are fractions over what could be scored (masked rollouts are in no denominator);
None means "not measured", never zero; lists are in order of step or version.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from infra.db.reading.agents import AgentFigures
from infra.db.reading.evaluations import Evaluation, scored_of
from infra.db.reading.task_sets import SetFigures
from infra.db.reading.trained_steps import Composition, Lengths, Step
from infra.db.runs.campaign_record import Parent
from infra.db.runs.events import EventRecord
from mainspring.artifacts.reproducibility import CampaignFingerprint
from mainspring.config.files.changes import FieldChange
from mainspring.status import CampaignStatus, Sampling

if TYPE_CHECKING:  # it loads numpy, and `campaign show` reads no tokens
    from infra.db.training.sft import StoredSftData

HELDOUT_TEMPLATES = "heldout_templates"


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

    data: "StoredSftData"
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
    temporal_ui: str
    """Base URL of Temporal's web UI; empty: no links."""
    totals: Totals
    evaluations: tuple[Evaluation, ...] = ()
    main_split: str = "heldout"
    """The split the headline solve rate is measured on."""
    steps: tuple[Step, ...] = ()
    lengths: tuple[Lengths, ...] = ()
    compositions: tuple[Composition, ...] = ()
    stop_reasons: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    """Rollouts by what masked them; the most frequent kinds, each with one fault's words."""
    agents: tuple[AgentFigures, ...] = ()
    """Figures of each agent, of a run that several play."""
    sets: tuple[SetFigures, ...] = ()
    """Figures of each task set, of a campaign that has several sources."""
    suspicions: dict[str, int] = field(default_factory=dict)
    """Rollouts by kind; one rollout may be of several."""
    bundles: dict[str, int] = field(default_factory=dict)
    """Rollouts by the SHA-256 of the bundle that their program ran from."""
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

    def evaluated(self, split: str, sampling: Sampling) -> list[Evaluation]:
        """Evaluations of one kind that scored anything, oldest version first."""
        return scored_of(self.evaluations, split, sampling)

    @property
    def further(self) -> list[str]:
        """Labels of what was measured beside the main split and unseen bug types: other splits,
        and other sources."""
        labels = dict.fromkeys(evaluation.split for evaluation in self.evaluations)
        return [label for label in labels if label not in (self.main_split, HELDOUT_TEMPLATES)]

    def before_after(self, split: str, sampling: Sampling) -> tuple[float | None, float | None]:
        """Solve rate of the first policy and of the newest evaluated one; None where missing."""
        scored, first = self.evaluated(split, sampling), self.first_version
        before = scored[0].solve_rate if scored and scored[0].version == first else None
        after = scored[-1].solve_rate if scored and scored[-1].version > first else None
        return before, after

    @property
    def first_version(self) -> int:
        """Policy version that it begins with."""
        return 0 if self.parent is None else self.parent.version
