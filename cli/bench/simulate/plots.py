"""Plots of simulated campaigns as SVG files, one for each axis that has several values.

Rows are those of `--json`. Imported by the command when plots are asked for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.drawing import AMBER, BLUE, GREEN, RED, VIOLET, svg

Row = Mapping[str, Any]

_COLOURS = {
    "var(--ink-soft)": "#57606a",
    "var(--line)": "#d0d7de",
    "var(--blue)": "#0969da",
    "var(--green)": "#1a7f37",
    "var(--amber)": "#bf8700",
    "var(--violet)": "#8250df",
    "var(--red)": "#cf222e",
    "var(--card)": "#ffffff",
}
"""A file of its own has no page whose colours it could follow; these are read on white and black.
"""
_OF_STALENESS = (RED, BLUE, GREEN, VIOLET)
_OF_WAY = {"resume": BLUE, "restart": AMBER, "mask": RED}


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """The files that were written; `folder` is made where it is missing."""
    plots: list[tuple[str, str, Callable[[Any, Sequence[Row]], None], str]] = [
        ("train-time", "Trainer idle and steps per hour by training time", _by_train, "train_s"),
        ("batch", "Trainer idle by groups of a step", _by_groups, "groups_per_step"),
        ("lifetimes", "Work lost by lifetime of machines", _by_lifetime, "lifetime_s"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, title, paint, axis in plots:
        chosen = _varying(rows, axis)
        if not chosen:
            continue
        path = folder / f"{name}.svg"
        drawn = svg(title, paint, chosen, 1 if name == "batch" else 2)
        path.write_text(re.sub(r"var\(--[\w-]+\)", lambda m: _COLOURS[m[0]], drawn) + "\n")
        written.append(path)
    return written


def _varying(rows: Sequence[Row], axis: str) -> list[Row]:
    """Those with a value on `axis`, where there are several values; other axes at their first."""
    others = {"train_s", "groups_per_step", "lifetime_s", "deadline_s"} - {axis}
    chosen = [row for row in rows if row[axis] is not None]
    for other in sorted(others):
        values = [row[other] for row in chosen]
        usual = None if None in values else next(iter(values), None)
        chosen = [row for row in chosen if row[other] == usual]
    return chosen if len({row[axis] for row in chosen}) > 1 else []


def _by_train(axes: Any, rows: Sequence[Row]) -> None:
    idle, rate = axes
    _by_staleness(idle, rows, "train_s", lambda row: row["trainer_idle"], 60)
    _by_staleness(rate, rows, "train_s", lambda row: row["steps_per_h"], 60)
    idle.set_ylabel("trainer idle")
    idle.set_ylim(0, 1)
    idle.legend(loc="lower left")
    rate.set_ylabel("steps per hour")
    rate.set_xlabel("minutes of a training step")


def _by_groups(axes: Any, rows: Sequence[Row]) -> None:
    _by_staleness(axes, rows, "groups_per_step", lambda row: row["trainer_idle"], 1)
    axes.set_ylabel("trainer idle")
    axes.set_xlabel("groups of a step")
    axes.set_ylim(0, 1)
    axes.legend()


def _by_staleness(
    axes: Any, rows: Sequence[Row], axis: str, value: Callable[[Row], float | None], unit: float
) -> None:
    for staleness in sorted({row["max_staleness"] for row in rows}):
        colour = _OF_STALENESS[staleness % len(_OF_STALENESS)]
        points = [row for row in rows if row["max_staleness"] == staleness]
        _line(axes, points, axis, value, unit, label=f"staleness {staleness}", color=colour)


def _by_lifetime(axes: Any, rows: Sequence[Row]) -> None:
    lost, rate = axes
    for way, colour in _OF_WAY.items():
        points = [row for row in rows if row["on_loss"] == way]
        _line(lost, points, "lifetime_s", lambda row: row["discarded_turns"], 60, way, colour)
        _line(rate, points, "lifetime_s", lambda row: row["steps_per_h"] or 0.0, 60, way, colour)
    for axis in axes:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
    lost.set_ylabel("turns lost")
    lost.set_ylim(0, 1)
    lost.legend(loc="upper right")
    rate.set_ylabel("steps per hour")
    rate.set_xlabel("mean minutes that a machine lives")


def _line(
    axes: Any,
    rows: Sequence[Row],
    axis: str,
    value: Callable[[Row], float | None],
    unit: float,
    label: str,
    color: str,
) -> None:
    points = sorted((row[axis] / unit, y) for row in rows if (y := value(row)) is not None)
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label, color=color)
