"""Bars as SVG: parts of a whole at each step.

Pure. Imported by `panels`.
"""

from collections.abc import Sequence
from math import isfinite

from markupsafe import Markup

from mainspring.words.figures import number
from view.drawing.plots import COLOURS, LEFT, RIGHT, WIDTH, PlotLine, Scale, axes, figure

MAX_BARS = 150
"""Steps that are drawn; of more, only each second or third."""


def stacked(title: str, lines: Sequence[PlotLine], x: str = "step", note: str = "") -> Markup:
    """A bar for each place of the axis, with the values of all lines upon each other."""
    heights: dict[float, list[float]] = {}
    for place, line in enumerate(lines):
        for at, value in line.points:
            if value is not None and isfinite(value):
                heights.setdefault(at, [0.0] * len(lines))[place] = max(value, 0.0)
    if not heights:
        return Markup("")
    places = sorted(heights)[:: -(-len(heights) // MAX_BARS)]
    top = max(sum(heights[at]) for at in places) or 1.0
    scale = Scale(places[0] - 0.5, places[-1] + 0.5, 0.0, top)
    width = 0.8 * (WIDTH - LEFT - RIGHT) / max(len(places), 3)
    drawn = [*axes(Scale(places[0], places[-1], 0.0, top), x)]
    for at in places:
        below = 0.0
        for place, height in enumerate(heights[at]):
            if height:
                drawn.append(
                    Markup(
                        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '
                        'class="area{}"><title>{} {}, {}: {}</title></rect>'
                    ).format(
                        scale.x(at) - width / 2,
                        scale.y(below + height),
                        width,
                        scale.y(below) - scale.y(below + height),
                        place % COLOURS,
                        x,
                        number(at),
                        lines[place].name,
                        number(height, 4),
                    )
                )
            below += height
    return figure(title, lines, Markup("").join(drawn), x, note)
