"""Plots of a step's figures by name: which stand beside each other, and what each plot tells.

Invariants: every figure that docs/metrics.md has is on a panel, which a test compares; one that
is on none (a loss of your own names them) gets one of its own. Pure. Imported by pages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from view.drawing.bars import stacked
from view.drawing.plots import PlotLine, curve

Rows = Sequence[Mapping[str, Any]]
"""Lines of `reports.metrics`, one for each step."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    note: str
    lines: tuple[tuple[str, str], ...]
    """(name in the plot, figure)."""
    on_overview: bool = False
    """Drawn on the page of the run as well."""
    is_log: bool = False
    is_stacked: bool = False
    """Parts of one whole: bars upon each other."""

    @property
    def figures(self) -> list[str]:
        return [figure for _, figure in self.lines]


def _one(title: str, note: str, figure: str, on_overview: bool = False) -> Panel:
    return Panel(title, note, ((title.lower(), figure),), on_overview)


LEARNING = (
    _one("Reward", "Mean over the scored rollouts of a step's batch.", "reward_mean", True),
    _one("Resolved", "Share of the scored rollouts of a step's batch.", "resolve_rate"),
    _one("Entropy", "Nats a token. A fall to zero is collapse.", "entropy", True),
    _one("Loss", "In the step's first pass.", "loss"),
    Panel(
        "Parts of the loss",
        "The policy's part, KL penalty, entropy bonus.",
        (("policy", "loss_policy"), ("KL penalty", "loss_kl"), ("entropy bonus", "loss_entropy")),
    ),
    _one("Gradient norm", "Before it is clipped.", "grad_norm", True),
    _one("Learning rate", "AdamW's, of the policy.", "lr"),
    _one("Likelihood", 'Negative log-likelihood, with the loss "nll".', "nll"),
    Panel(
        "Critic",
        "Loss; and the share of the returns' variance that its values explain: below 0 it is worse "
        "than a constant.",
        (("loss", "value_loss"), ("explained", "value_explained_variance")),
    ),
    Panel(
        "Critic's values",
        "Their mean beside that of the rewards.",
        (("value", "value_mean"), ("reward", "reward_mean")),
    ),
    Panel(
        "Critic's update",
        "Gradient norm, and the share of clipped values.",
        (("norm", "critic_grad_norm"), ("clipped", "value_clip_fraction")),
    ),
)
STABILITY = (
    Panel(
        "Log-prob gap, served against recomputed",
        "Nats, over tokens of the weights that the step began with.",
        (
            ("largest", "logprob_gap_max"),
            ("99.9 %", "logprob_gap_p999"),
            ("mean", "logprob_gap_mean"),
        ),
        on_overview=True,
        is_log=True,
    ),
    Panel(
        "Log-prob gap of most tokens",
        "Nats; KL(served, recomputed) in nats a token.",
        (("half", "logprob_gap_p50"), ("99 %", "logprob_gap_p99"), ("KL", "logprob_gap_k3")),
    ),
    Panel(
        "How far a step moves",
        "KL(rollout, current) by two estimates, in the last pass. Above 0.1 it moved too far.",
        (("k3", "kl"), ("k1", "kl_k1")),
        on_overview=True,
    ),
    _one("Ratio", "Current over served probability. Far from 1 it moved too far.", "ratio_mean"),
    _one("KL to the reference", "Nats a token.", "kl_reference"),
    Panel(
        "Clipped tokens",
        "Share of tokens: in all, at the lower, the upper and the third bound.",
        (
            ("all", "clip_fraction"),
            ("lower", "clip_fraction_low"),
            ("upper", "clip_fraction_high"),
            ("third", "clip_fraction_dual"),
        ),
        on_overview=True,
    ),
    _one("Cut by the correction", "Share of tokens.", "correction_cut"),
    Panel(
        "Staleness",
        "Policy versions between sampling and training of a token.",
        (("mean", "staleness_mean"), ("largest", "staleness_max")),
        on_overview=True,
    ),
    Panel(
        "Age of tokens",
        "Shares of tokens by policy versions between sampling and training.",
        (
            ("0", "staleness_0"),
            ("1", "staleness_1"),
            ("2", "staleness_2"),
            ("3 or more", "staleness_3plus"),
        ),
        is_stacked=True,
    ),
)
BATCH = (
    Panel(
        "Groups by their rollouts",
        "Only mixed ones carry a gradient.",
        (
            ("none resolved", "all_zero_groups"),
            ("mixed", "mixed_groups"),
            ("all resolved", "all_one_groups"),
        ),
        is_stacked=True,
    ),
    _one("Turns", "Mean of a scored rollout.", "turns_mean"),
    _one("Sampled tokens", "Mean of a scored rollout.", "sampled_tokens_mean"),
    _one("Masked rollouts", "Those that could not be scored.", "masked_rollouts"),
    _one("Suspicious rollouts", "Share that looks like cheating.", "suspicious_share"),
    Panel(
        "Left out of training",
        "Tokens masked for their age; rollouts that a limit cut off.",
        (("tokens", "num_stale_tokens_masked"), ("rollouts", "num_overlong_masked")),
    ),
    _one("Samples", "Those that carry advantage.", "num_samples"),
    Panel(
        "Tokens of a step",
        "Action tokens of the loss, and those that the log-prob gap was measured on.",
        (("of the loss", "num_tokens"), ("compared", "num_gap_tokens")),
    ),
)
SPEED = (
    Panel(
        "Where the time went, seconds",
        "The trainer waits for a batch, computes, and loads and saves.",
        (("waiting", "trainer_idle_s"), ("computing", "compute_s"), ("rest", "rest_s")),
        on_overview=True,
        is_stacked=True,
    ),
    Panel(
        "Tokens a second",
        "Through forward and backward pass; and action tokens trained, of the whole loop.",
        (("passes", "tokens_per_s"), ("trained", "goodput")),
        on_overview=True,
    ),
    _one("Seconds of a step", "Loading, computing, saving.", "seconds"),
    _one("Tokens through the passes", "Prompts and observations too.", "num_trained_tokens"),
    _one("Model FLOPs utilisation", "Share of the devices' peak.", "mfu"),
    _one("Requests at engines", "Mean number at the same time.", "engine_requests_mean"),
    _one("Engines without a request", "Seconds since the commit before.", "engine_idle_s"),
    _one("Memory", "GiB, of the rank that needed most.", "rank_memory_peak_gib"),
)
SECTIONS: Mapping[str, Sequence[Panel]] = {
    "Does it learn": LEARNING,
    "Is it stable": STABILITY,
    "What it trains on": BATCH,
    "How fast is it": SPEED,
}
PANELS = tuple(panel for panels in SECTIONS.values() for panel in panels)
SUPERVISED = ("Loss", "Gradient norm", "Seconds of a step", "Tokens a second")
"""Titles of the panels on the page of a supervised run."""
SHARED = frozenset({"reward_mean"})
"""Figures that stand beside others for comparison."""
NOT_DRAWN = frozenset({"kind", "campaign", "step", "policy_version", "time", "rest_s"})
"""Fields of a line that are no figures."""


def draw(panel: Panel, rows: Rows, at_least: float | None = None) -> Markup:
    """Empty where no step has a figure that the panel alone shows."""
    lines = [
        PlotLine(name, [(row["step"], _value(row, figure)) for row in rows])
        for name, figure in panel.lines
        if any(_value(row, figure) is not None for row in rows)
    ]
    names = {line.name for line in lines}
    drawn = {figure for name, figure in panel.lines if name in names}
    if not drawn or (len(panel.lines) > 1 and drawn <= SHARED):
        return Markup("")
    if panel.is_stacked:
        return stacked(panel.title, lines, note=panel.note)
    return curve(panel.title, *lines, at_least=at_least, note=panel.note, log=panel.is_log)


def own_panels(rows: Rows) -> list[Panel]:
    """A panel for each figure that no other has: a loss names them, or a reward's part."""
    known = {figure for panel in PANELS for figure in panel.figures} | NOT_DRAWN
    names = sorted({name for row in rows for name in row} - known)
    parts = tuple(
        (name.partition("/")[2], name) for name in names if name.startswith("reward_part/")
    )
    made = [Panel(name, "", ((name, name),)) for name in names if "/" not in name]
    if parts and {name for name, _ in parts} != {"outcome"}:
        note = "Mean over the rollouts of a step, before its weight."
        made.insert(0, Panel("Parts of the reward", note, parts))
    return made


def panels_named(titles: Iterable[str]) -> list[Panel]:
    chosen = set(titles)
    return [panel for panel in PANELS if panel.title in chosen]


def _value(row: Mapping[str, Any], figure: str) -> float | None:
    if figure == "rest_s":
        whole, computing = row.get("seconds"), row.get("compute_s")
        if whole is None or computing is None:
            return None
        return max(whole - computing, 0.0)
    value = row.get(figure)
    return value if isinstance(value, int | float) else None
