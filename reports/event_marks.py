"""Marks in the report's plots: at which step something was killed, lost or replaced.

A step has no time axis: an event is drawn before the first step that ended after it. Imported by
`plots`.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

from mainspring.status.event import LASTING, EventKind
from reports.data import ReportData
from reports.drawing import AMBER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUIET = {*LASTING, EventKind.ENGINE_JOINED, EventKind.ENGINE_LEFT}
"""Kinds that are no loss or recovery."""


def places(data: ReportData) -> list[float]:
    """Places on the axis of steps, each once."""
    ended = [step for step in data.steps if step.finished_at is not None]
    times = [step.finished_at for step in ended if step.finished_at is not None]
    found: set[float] = set()
    for event in data.events:
        if event.kind not in _QUIET and ended:
            after = bisect_left(times, event.at)
            found.add(ended[after].step - 0.5 if after < len(ended) else ended[-1].step + 0.5)
    return sorted(found)


def mark(axes: "Axes", data: ReportData) -> None:
    """Draw a triangle at the upper edge for each step that something happened in."""
    if found := places(data):
        axes.plot(
            found,
            [0.985] * len(found),
            linestyle="none",
            marker="v",
            markersize=5,
            color=AMBER,
            transform=axes.get_xaxis_transform(),
            label="lost or replaced",
        )
