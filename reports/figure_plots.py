"""Plots of a step's figures as they are stored, by name: one table of panels.

Invariants: every figure that docs/metrics.md tells people to watch is drawn here or by `plots`,
which a test compares; a panel without a value is not drawn, and a step without one is a gap.
`reports.plots` has their place on the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reports.axes import legend, line, whole_steps
from reports.data import ReportData
from reports.drawing import AMBER, BLUE, GREEN, INK, RED, VIOLET

COLORS = (BLUE, AMBER, GREEN, VIOLET, RED, INK)


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    caption: str
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """From above: the axis' label, and the figures that it has."""

    @property
    def names(self) -> list[str]:
        return [name for _, names in self.rows for name in names]


PANELS: tuple[Panel, ...] = (
    Panel(
        "How far a step moves",
        "KL(rollout, current) by its two estimates, and the mean ratio, in the last pass. Above "
        "0.1 the step moved too far; a ratio far from 1 likewise.",
        (("nats a token", ("kl", "kl_k1")), ("ratio", ("ratio_mean",))),
    ),
    Panel(
        "Clipped at the third bound",
        'Share of tokens at the bound of the loss "dual_clip".',
        (("clipped", ("clip_fraction_dual",)),),
    ),
    Panel(
        "Critic",
        "Its loss, and how much of the returns' variance its values explain: below 0 it is worse "
        "than a constant.",
        (("loss", ("value_loss",)), ("explained", ("value_explained_variance",))),
    ),
    Panel(
        "Critic's values",
        "Their mean beside that of the rewards; tokens whose value its loss clipped.",
        (("reward", ("value_mean", "reward_mean")), ("clipped", ("value_clip_fraction",))),
    ),
    Panel(
        "Critic's gradient",
        "Its norm before it is clipped.",
        (("norm", ("critic_grad_norm",)),),
    ),
    Panel(
        "Age of tokens",
        "Shares of tokens by policy versions between sampling and training, and the oldest token.",
        (
            ("share", ("staleness_0", "staleness_1", "staleness_2", "staleness_3plus")),
            ("versions", ("staleness_max",)),
        ),
    ),
    Panel(
        "Masked work",
        "Tokens masked for their age, and rollouts not trained on because a limit cut them off.",
        (("tokens", ("num_stale_tokens_masked",)), ("rollouts", ("num_overlong_masked",))),
    ),
    Panel(
        "Log-prob gap of most tokens",
        "Mean and quantiles of the difference of served and recomputed log-probs, and KL(served, "
        "recomputed).",
        (
            (
                "nats",
                ("logprob_gap_mean", "logprob_gap_p50", "logprob_gap_p99", "logprob_gap_p999"),
            ),
            ("nats a token", ("logprob_gap_k3",)),
        ),
    ),
    Panel(
        "Batch",
        "Action tokens of the loss, and tokens that the log-prob gap was measured on; samples that "
        "carry advantage.",
        (("tokens", ("num_tokens", "num_gap_tokens")), ("samples", ("num_samples",))),
    ),
    Panel(
        "Engines",
        "Requests at engines at the same time, and seconds without any.",
        (("requests", ("engine_requests_mean",)), ("idle, s", ("engine_idle_s",))),
    ),
    Panel(
        "Memory",
        "Of the rank that needed most.",
        (("GiB", ("rank_memory_peak_gib",)),),
    ),
    Panel("Learning rate", "AdamW's, of the policy.", (("rate", ("lr",)),)),
)
ELSEWHERE = frozenset(
    {"reward_mean", "resolve_rate", "mixed_groups", "all_zero_groups", "all_one_groups"}
    | {"masked_rollouts", "suspicious_share", "turns_mean", "sampled_tokens_mean"}
    | {"reward_part/NAME", "loss", "loss_policy", "loss_kl", "loss_entropy", "entropy"}
    | {"grad_norm", "clip_fraction", "clip_fraction_low", "clip_fraction_high"}
    | {"staleness_mean", "logprob_gap_max", "kl_reference", "correction_cut", "nll"}
    | {"tokens_per_s", "goodput", "mfu", "trainer_idle_s", "compute_s", "seconds"}
)
"""Figures that `plots` and `speed_plots` draw."""


def panels(
    data: ReportData,
) -> list[tuple[str, str, Callable[[Any, ReportData], None], bool, int]]:
    """As `reports.plots.draw` has them."""
    if data.supervised is not None:
        return []
    return [
        (panel.title, panel.caption, partial(_paint, panel), _has(data, panel), len(panel.rows))
        for panel in PANELS
    ]


def _has(data: ReportData, panel: Panel) -> bool:
    """A panel of a figure that others show as well needs one of its own."""
    own = [name for name in panel.names if name not in ELSEWHERE]
    return any(step.metrics.get(name) is not None for step in data.steps for name in own)


def _paint(panel: Panel, axes: Any, data: ReportData) -> None:
    rows: Sequence[Any] = axes if len(panel.rows) > 1 else [axes]
    for place, (row, (label, names)) in enumerate(zip(rows, panel.rows, strict=True)):
        for name, color in zip(names, COLORS, strict=False):
            points = [(step.step, step.metrics.get(name)) for step in data.steps]
            line(row, points, color=color, label=name)
        legend(row, ncols=2)
        row.set_ylabel(label)
        whole_steps(row, "step" if place == len(panel.rows) - 1 else "")
