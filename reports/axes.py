"""Lines, ticks and legends that the report's plots share."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def any_of(steps: Sequence[Any], name: str) -> bool:
    return any(getattr(step, name) is not None for step in steps)


def line(axes: "Axes", points: Iterable[tuple[float, float | None]], **style: Any) -> bool:
    measured = [(x, y) for x, y in points if y is not None]
    if not measured:
        return False
    if len(measured) == 1:
        style.setdefault("marker", "o")
        style.setdefault("markersize", 4)
    axes.plot([x for x, _ in measured], [y for _, y in measured], **style)
    return True


def whole_steps(axes: "Axes", label: str = "step") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if label:
        axes.set_xlabel(label)
    else:
        axes.tick_params(labelbottom=False)


def legend(axes: "Axes", ncols: int) -> None:
    if axes.get_legend_handles_labels()[0]:  # matplotlib warns of an empty one
        axes.legend(ncols=ncols, loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=1.2)


def from_zero(axes: "Axes", values: Sequence[float]) -> None:
    """With room above: a level line must not lie on the edge."""
    axes.set_ylim(0, max(values, default=1.0) * 1.15 or 1.0)
