"""Marks in the report's plots: at which step something was killed, lost or replaced.

Imported by `plots`.
"""

from typing import TYPE_CHECKING

from mainspring.words.events import at_steps
from reports.data import ReportData
from reports.drawing import AMBER

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def mark(axes: "Axes", data: ReportData) -> None:
    """Draw a triangle at the upper edge for each step that something happened in."""
    ends = [(step.step, step.finished_at) for step in data.steps if step.finished_at is not None]
    if found := at_steps(data.events, ends):
        axes.plot(
            list(found),
            [0.985] * len(found),
            linestyle="none",
            marker="v",
            markersize=5,
            color=AMBER,
            transform=axes.get_xaxis_transform(),
            label="lost or replaced",
        )
