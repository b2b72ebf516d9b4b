"""Plots of simulated campaigns as SVG files, one for each axis that has several values.

Rows are those of `--json`. Imported by the command when plots are asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from view.drawing.plots import PlotLine
from view.drawing.svg_file import svg_file

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]
WAYS = ("resume", "restart", "mask")
"""Treatments of the work of a machine that died."""


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """The files that were written; `folder` is made where it is missing."""
    idle, rate, lost = map(itemgetter, ("trainer_idle", "steps_per_h", "discarded_turns"))
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        _write(
            folder / "train-time.svg",
            "Trainer idle and steps per hour by training time",
            _varying(rows, "train_s"),
            lambda chosen: [
                ("trainer idle", _by_staleness(chosen, "train_s", idle, 60)),
                ("steps per hour", _by_staleness(chosen, "train_s", rate, 60)),
            ],
            "minutes of a training step",
        ),
        _write(
            folder / "batch.svg",
            "Trainer idle by groups of a step",
            _varying(rows, "groups_per_step"),
            lambda chosen: [
                ("trainer idle", _by_staleness(chosen, "groups_per_step", idle, 1)),
            ],
            "groups of a step",
        ),
        _write(
            folder / "lifetimes.svg",
            "Work lost by lifetime of machines",
            _varying(rows, "lifetime_s"),
            lambda chosen: [
                ("turns lost", _by_way(chosen, lost)),
                ("steps per hour", _by_way(chosen, lambda row: rate(row) or 0.0)),
            ],
            "mean minutes that a machine lives:",
        ),
    ]
    return [file for file in files if file is not None]


def _write(
    path: Path,
    title: str,
    rows: Sequence[Row],
    lines: Callable[[Sequence[Row]], Sequence[tuple[str, Sequence[PlotLine]]]],
    x: str,
) -> Path | None:
    plots = [(label, drawn) for label, drawn in lines(rows) if drawn]
    if not plots:
        return None
    path.write_text(svg_file(title, plots, x))
    return path


def _varying(rows: Sequence[Row], axis: str) -> list[Row]:
    """Those with a value on `axis`, where there are several values; other axes at their first."""
    others = {"train_s", "groups_per_step", "lifetime_s", "deadline_s"} - {axis}
    chosen = [row for row in rows if row[axis] is not None]
    for other in sorted(others):
        values = [row[other] for row in chosen]
        usual = None if None in values else next(iter(values), None)
        chosen = [row for row in chosen if row[other] == usual]
    return chosen if len({row[axis] for row in chosen}) > 1 else []


def _by_staleness(rows: Sequence[Row], axis: str, value: Value, unit: float) -> list[PlotLine]:
    return _lines(
        {
            f"staleness {staleness}": [row for row in rows if row["max_staleness"] == staleness]
            for staleness in sorted({row["max_staleness"] for row in rows})
        },
        axis,
        value,
        unit,
    )


def _by_way(rows: Sequence[Row], value: Value) -> list[PlotLine]:
    by_way = {way: [row for row in rows if row["on_loss"] == way] for way in WAYS}
    return _lines(by_way, "lifetime_s", value, 60)


def _lines(
    named: Mapping[str, Sequence[Row]], axis: str, value: Value, unit: float
) -> list[PlotLine]:
    """Those that have a value."""
    lines = [
        PlotLine(
            name,
            sorted((row[axis] / unit, y) for row in rows if (y := value(row)) is not None),
        )
        for name, rows in named.items()
    ]
    return [line for line in lines if line.points]
