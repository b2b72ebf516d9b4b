"""The report's plots: which there are, and what each draws of a campaign's numbers.

How a drawing becomes part of the page is in `drawing`.
"""

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from infra.db.reading.timings import NEWEST
from mainspring.rewards.passk import wilson
from mainspring.status import Sampling
from reports import event_marks, figure_plots, speed_plots
from reports.axes import any_of, from_zero, legend, line, whole_steps
from reports.data import HELDOUT_TEMPLATES, ReportData
from reports.drawing import AMBER, BLUE, CARD, GREEN, INK, RED, VIOLET, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTH_STEPS = 5
"""Steps of the training curve's moving mean."""
_MIN_GAP = 1e-9
"""A gap of exactly zero is drawn here: a log axis has no zero."""


def draw(data: ReportData) -> list[tuple[str, str, str]]:
    """(title, caption, svg) of every plot there is data for."""
    is_supervised = data.supervised is not None
    plots: list[tuple[str, str, Callable[[Any, ReportData], None], bool, int]] = [
        (
            "Loss",
            "Negative log-likelihood of a trained token, mean of each step's batch before the "
            "step, nats.",
            _loss,
            is_supervised and bool(data.steps),
            1,
        ),
        (
            "Reward and resolve rate",
            "Rollouts of each training step (line: mean of 5 steps), and evaluations on unseen "
            "tasks with their 95 % intervals (circles).",
            _reward,
            not is_supervised and bool(data.steps or data.evaluations),
            1,
        ),
        (
            "Entropy",
            "Of the policy's next-token distribution, nats. A fall to zero is collapse.",
            _entropy,
            any_of(data.steps, "entropy"),
            1,
        ),
        (
            "Log-prob gap",
            "Served against recomputed log-probs of the same weights, by training steps (circles) "
            "and evaluations (squares). A step without a mark had no tokens of those weights.",
            _gap,
            any_of(data.steps, "logprob_gap_max") or bool(data.checked_gaps),
            1,
        ),
        (
            "Signal",
            "Groups of a step by their rollouts: only mixed ones carry a gradient.",
            _signal,
            any_of(data.steps, "mixed_groups"),
            2,
        ),
        ("Lengths", "Means over the rollouts of a step.", _lengths, bool(data.lengths), 2),
        (
            "What the reward is made of",
            "Mean of each part over a step's rollouts, before its weight.",
            _parts,
            any(composition.parts.keys() - {"outcome"} for composition in data.compositions),
            1,
        ),
        (
            "Suspicious rollouts",
            "Share of a step's rollouts that look like cheating.",
            _suspicious,
            any(composition.suspicious for composition in data.compositions),
            1,
        ),
        (
            "Off-policy",
            "Tokens clipped in all, at the lower and at the upper bound; versions between sampling "
            "and training.",
            _off_policy,
            any_of(data.steps, "clip_fraction") or any_of(data.steps, "staleness_mean"),
            2,
        ),
        (
            "Parts of the loss",
            "What the step made smaller: the policy's part, KL penalty, entropy bonus.",
            speed_plots.loss_parts,
            speed_plots.has(data, "loss_policy"),
            1,
        ),
        (
            "Throughput",
            "Tokens through forward and backward pass a second of computing, and action tokens "
            "trained a second of the whole loop (goodput).",
            speed_plots.throughput,
            speed_plots.has(data, "tokens_per_s"),
            2,
        ),
        (
            "Where the trainer's time went",
            "Of each step: waiting for its batch, computing, loading and saving.",
            speed_plots.spent,
            speed_plots.has(data, "compute_s"),
            1,
        ),
        (
            "Model FLOPs utilisation",
            "Share of the devices' peak that the model's own operations reach.",
            speed_plots.utilisation,
            speed_plots.has(data, "mfu"),
            1,
        ),
        (
            "Figures of the loss",
            "What the campaign's loss names, mean over a step's tokens.",
            _own_figures,
            bool(data.own_figures),
            1,
        ),
        *figure_plots.panels(data),
        (
            "Masked rollouts",
            "Rollouts of a step's groups that could not be scored.",
            _masked,
            any(step.masked_rollouts for step in data.steps),
            1,
        ),
        (
            "Time per phase",
            f"Of one of the newest {NEWEST:,} rollouts, queueing included: median (dot) to p95.",
            _timings,
            bool(data.timings),
            1,
        ),
        (
            "How rollouts ended",
            "Stop reasons and what grading found.",
            _endings,
            bool(data.stop_reasons),
            2,
        ),
    ]
    return [
        (title, caption, svg(title, paint, data, rows))
        for title, caption, paint, has_data, rows in plots
        if has_data
    ]


def _reward(axes: "Axes", data: ReportData) -> None:
    steps = [s.step for s in data.steps]
    solved = [s.solve_rate if s.solve_rate is not None else s.reward_mean for s in data.steps]
    smooth = _moving_mean(solved)
    line(axes, zip(steps, solved, strict=True), color=BLUE, linewidth=0.8, alpha=0.45)
    line(axes, zip(steps, smooth, strict=True), color=BLUE, linewidth=2.0, label="training")
    kinds = [
        (data.main_split, Sampling.SAMPLED, GREEN, "unseen tasks, sampled"),
        (data.main_split, Sampling.GREEDY, AMBER, "unseen tasks, greedy"),
        (HELDOUT_TEMPLATES, Sampling.SAMPLED, VIOLET, "unseen bug types, sampled"),
        *(
            (label, Sampling.SAMPLED, color, f"{label}, sampled")
            for label, color in zip(data.further, cycle((RED, INK)), strict=False)
        ),
    ]
    shift = max(steps, default=1) * 0.006
    for number, (split, sampling, color, label) in enumerate(kinds):
        evaluations = data.evaluated(split, sampling)
        if not evaluations:
            continue
        shares = [(evaluation.solve_rate or 0.0) for evaluation in evaluations]
        ends = [
            wilson(s, e.num_tasks - e.num_masked) for s, e in zip(shares, evaluations, strict=True)
        ]
        # No line: between two evaluations nothing was measured.
        axes.errorbar(
            [evaluation.version + (number - 1) * shift for evaluation in evaluations],
            shares,
            yerr=[
                [share - low for share, (low, _) in zip(shares, ends, strict=True)],
                [high - share for share, (_, high) in zip(shares, ends, strict=True)],
            ],
            fmt="o",
            color=color,
            label=label,
            markersize=5.5,
            markeredgecolor=CARD,
            elinewidth=1.1,
            capsize=2,
        )
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    event_marks.mark(axes, data)
    legend(axes, ncols=2)
    whole_steps(axes, "policy version")


def _moving_mean(values: Sequence[float | None]) -> list[float | None]:
    """Means of up to SMOOTH_STEPS values around each."""
    half = SMOOTH_STEPS // 2
    means: list[float | None] = []
    for middle in range(len(values)):
        near = [v for v in values[max(0, middle - half) : middle + half + 1] if v is not None]
        means.append(sum(near) / len(near) if near else None)
    return means


def _loss(axes: "Axes", data: ReportData) -> None:
    line(axes, [(s.step, s.metrics.get("loss")) for s in data.steps], color=BLUE)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("nats a token")
    whole_steps(axes)


def _entropy(axes: "Axes", data: ReportData) -> None:
    line(axes, [(s.step, s.entropy) for s in data.steps], color=VIOLET)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("nats a token")
    whole_steps(axes)


def _gap(axes: "Axes", data: ReportData) -> None:
    # A step whose tokens were all sampled under older weights had nothing to compare: no mark, and
    # no line over it.
    measured = [
        max(s.logprob_gap_max, _MIN_GAP) if s.logprob_gap_max is not None and s.num_gap_tokens
        else math.nan
        for s in data.steps
    ]  # fmt: skip
    checked = [(gap.version, max(gap.gap_max, _MIN_GAP)) for gap in data.checked_gaps]
    axes.plot(
        [s.step for s in data.steps], measured, color=BLUE, marker="o", markersize=3, linewidth=0.8
    )
    axes.plot(*zip(*checked, strict=True), "s", color=VIOLET, markersize=4) if checked else None
    points = [(0, y) for y in measured if not math.isnan(y)] + checked
    first = 0 if checked else 1
    axes.set_xlim(first - 0.5, max([s.step for s in data.steps], default=1) + 0.5)
    axes.set_yscale("log")
    limit = data.logprob_gap_limit
    if limit is not None:
        axes.axhline(limit, color=RED, linestyle=(0, (5, 3)), linewidth=1.2)
        highest = max([y for _, y in points] + [limit])
        lowest = min([y for _, y in points] + [limit / 10])
        axes.set_ylim(lowest / 3, highest * 6)
        axes.annotate(
            f"a step fails above {limit:g}",
            (1.0, limit),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 4),
            textcoords="offset points",
            ha="right",
            color=RED,
            fontsize=8.5,
        )
    axes.set_ylabel("max |difference|")
    whole_steps(axes)


def _signal(axes: "Sequence[Axes]", data: ReportData) -> None:
    from matplotlib.ticker import MaxNLocator

    steps = [s.step for s in data.steps]
    below = [0] * len(steps)
    for label, color, name in (
        ("none resolved", RED, "all_zero_groups"),
        ("mixed", GREEN, "mixed_groups"),
        ("all resolved", BLUE, "all_one_groups"),
    ):
        heights = [getattr(s, name) or 0 for s in data.steps]
        if any(heights):
            axes[0].bar(steps, heights, bottom=below, color=color, label=label)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes[0].set_ylabel("groups")
    legend(axes[0], ncols=3)
    axes[0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    whole_steps(axes[0], "")
    line(axes[1], [(s.step, s.grad_norm) for s in data.steps], color=BLUE)
    axes[1].set_ylim(bottom=0)
    axes[1].set_ylabel("gradient norm")
    whole_steps(axes[1])


def _lengths(axes: "Sequence[Axes]", data: ReportData) -> None:
    line(axes[0], [(length.step, length.num_turns) for length in data.lengths], color=BLUE)
    axes[0].set_ylabel("turns")
    from_zero(axes[0], [length.num_turns for length in data.lengths])
    whole_steps(axes[0], "")
    line(axes[1], [(length.step, length.num_tokens) for length in data.lengths], color=VIOLET)
    axes[1].set_ylabel("sampled tokens")
    from_zero(axes[1], [length.num_tokens for length in data.lengths])
    whole_steps(axes[1])


def _masked(axes: "Axes", data: ReportData) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.bar(
        [s.step for s in data.steps], [s.masked_rollouts or 0 for s in data.steps], color=AMBER
    )
    axes.set_ylabel("rollouts")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    whole_steps(axes)


def _parts(axes: "Axes", data: ReportData) -> None:
    names = list(
        dict.fromkeys(name for composition in data.compositions for name in composition.parts)
    )
    colors = (BLUE, GREEN, AMBER, VIOLET, RED, INK)
    for number, name in enumerate(names):
        line(
            axes,
            [(composition.step, composition.parts.get(name)) for composition in data.compositions],
            color=colors[number % len(colors)],
            label=name,
        )
    legend(axes, ncols=3)
    whole_steps(axes)


def _suspicious(axes: "Axes", data: ReportData) -> None:
    line(
        axes,
        [(composition.step, composition.suspicious) for composition in data.compositions],
        color=AMBER,
    )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    whole_steps(axes)


def _off_policy(axes: "Sequence[Axes]", data: ReportData) -> None:
    line(axes[0], [(s.step, s.clip_fraction) for s in data.steps], color=AMBER, label="all")
    for name, label, color in (
        ("clip_fraction_low", "below", BLUE),
        ("clip_fraction_high", "above", RED),
    ):
        points = [(s.step, s.metrics.get(name)) for s in data.steps]
        line(axes[0], points, color=color, label=label)
    legend(axes[0], ncols=3)
    axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:.3%}".replace(".000", ""))
    axes[0].set_ylabel("clipped")
    axes[0].set_ylim(bottom=0)
    whole_steps(axes[0], "")
    line(axes[1], [(s.step, s.staleness_mean) for s in data.steps], color=VIOLET)
    axes[1].set_ylabel("versions behind")
    axes[1].set_ylim(bottom=0)
    whole_steps(axes[1])


def _own_figures(axes: "Axes", data: ReportData) -> None:
    colors = (BLUE, GREEN, AMBER, VIOLET, RED)
    for number, name in enumerate(data.own_figures):
        values = [(step.step, step.metrics.get(name)) for step in data.steps]
        line(axes, values, color=colors[number % len(colors)], label=name)
    legend(axes, ncols=3)
    whole_steps(axes)


def _timings(axes: "Axes", data: ReportData) -> None:
    rows = list(reversed(data.timings))
    positions = range(len(rows))
    axes.hlines(
        positions, [t.p50_s for t in rows], [t.p95_s for t in rows], color=BLUE, linewidth=5,
        alpha=0.35,
    )  # fmt: skip
    axes.plot([t.p50_s for t in rows], positions, "o", color=BLUE, markersize=6)
    axes.set_yticks(positions, [t.phase for t in rows])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: _duration(value))
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(visible=False, axis="y")


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _endings(axes: "Sequence[Axes]", data: ReportData) -> None:
    tones = {"resolved": GREEN, "fault": AMBER, "infra_fault": AMBER, "terminated": AMBER}
    for panel, counts, color in (
        (axes[0], data.stop_reasons, BLUE),
        (axes[1], data.verdicts, RED),
    ):
        rows = sorted(counts.items(), key=lambda item: item[1])
        names = [name.replace("_", " ") for name, _ in rows]
        colors = [tones.get(name, color) for name, _ in rows]
        bars = panel.barh(names, [count for _, count in rows], color=colors, height=0.62)
        panel.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8.5)
        panel.margins(x=0.12)
        panel.grid(visible=False, axis="y")
        panel.tick_params(labelbottom=False)
