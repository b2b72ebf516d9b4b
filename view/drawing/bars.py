"""Bars as SVG: parts of a whole at each step, and counts by name.

Pure. Imported by `panels` and pages.
"""

from collections.abc import Mapping, Sequence
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


def counts(title: str, values: Mapping[str, float], note: str = "", unit: str = "") -> Markup:
    """A line with a bar for each name, the largest first; empty where there is none."""
    if not values:
        return Markup("")
    most = max(values.values()) or 1.0
    rows = Markup("").join(
        Markup(
            '<tr><th scope="row">{}</th><td class="n">{}{}</td><td><svg viewBox="0 0 100 10" '
            'preserveAspectRatio="none" class="bar" aria-hidden="true"><rect width="{:.1f}" '
            'height="10" class="area0"/></svg></td></tr>'
        ).format(name, number(value), unit, 100 * value / most)
        for name, value in sorted(values.items(), key=lambda item: -item[1])
    )
    told = Markup('<p class="note">{}</p>').format(note) if note else ""
    return Markup(
        '<figure class="plot"><figcaption>{}</figcaption><table class="counts">{}</table>{}'
        "</figure>"
    ).format(title, rows, told)
