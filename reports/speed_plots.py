"""Plots of what the trainer computed and how fast: `reports.plots` has their places on the page.

Invariant: a figure that no step has is not drawn, and a step without it is a gap.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports.axes import from_zero, legend, line, whole_steps
from reports.data import ReportData
from reports.drawing import AMBER, BLUE, GREEN, INK, VIOLET

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float | None]]


def has(data: ReportData, name: str) -> bool:
    return any(step.metrics.get(name) is not None for step in data.steps)


def loss_parts(axes: "Axes", data: ReportData) -> None:
    for name, label, color in (
        ("loss", "loss", INK),
        ("loss_policy", "policy", BLUE),
        ("loss_kl", "KL penalty", AMBER),
        ("loss_entropy", "entropy bonus", VIOLET),
    ):
        line(axes, _points(data, name), color=color, label=label)
    legend(axes, ncols=4)
    whole_steps(axes)


def throughput(axes: "Sequence[Axes]", data: ReportData) -> None:
    line(axes[0], _points(data, "tokens_per_s"), color=BLUE)
    axes[0].set_ylabel("tokens/s")
    from_zero(axes[0], _values(data, "tokens_per_s"))
    whole_steps(axes[0], "")
    line(axes[1], _points(data, "goodput"), color=GREEN)
    axes[1].set_ylabel("goodput, tokens/s")
    from_zero(axes[1], _values(data, "goodput"))
    whole_steps(axes[1])


def spent(axes: "Axes", data: ReportData) -> None:
    steps = [step.step for step in data.steps]
    below = [0.0] * len(steps)
    for label, color, heights in (
        ("waiting for the batch", AMBER, _seconds(data, "trainer_idle_s")),
        ("computing", BLUE, _seconds(data, "compute_s")),
        ("loading and saving", VIOLET, _other(data)),
    ):
        axes.bar(steps, heights, bottom=below, color=color, label=label)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_ylabel("seconds")
    legend(axes, ncols=3)
    whole_steps(axes)


def utilisation(axes: "Axes", data: ReportData) -> None:
    line(axes, _points(data, "mfu"), color=GREEN)
    from_zero(axes, _values(data, "mfu"))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    whole_steps(axes)


def _other(data: ReportData) -> list[float]:
    pairs = zip(_seconds(data, "seconds"), _seconds(data, "compute_s"), strict=True)
    return [max(whole - computing, 0.0) for whole, computing in pairs]


def _seconds(data: ReportData, name: str) -> list[float]:
    """A bar has no gap: what was not measured has no height."""
    return [max(step.metrics.get(name) or 0.0, 0.0) for step in data.steps]


def _values(data: ReportData, name: str) -> list[float]:
    return [value for _, value in _points(data, name) if value is not None]


def _points(data: ReportData, name: str) -> Points:
    return [(step.step, step.metrics.get(name)) for step in data.steps]
