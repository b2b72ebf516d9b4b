"""Plots as one SVG file, which has its own colours: readable on a white and on a black page.

Pure. Imported by the command line.
"""

from collections.abc import Sequence

from markupsafe import Markup

from view.drawing.plots import COLOURS, HEIGHT, WIDTH, PlotLine, drawing

_HEAD = 34
_STYLE = """
text { font: 11px sans-serif; fill: #6a737d; } .tick { font-size: 10px; } .grid { stroke: #c4cad1; }
polyline { fill: none; stroke-width: 1.6; }
.line0 { stroke: #2f81f7; } .line1 { stroke: #bf8700; stroke-dasharray: 5 3; }
.line2 { stroke: #2da44e; stroke-dasharray: 2 2; } .line3 { stroke: #a475f9; }
.line4 { stroke: #e5534b; } .line5 { stroke: #1b9aaa; }
.dot0, .key0 { fill: #2f81f7; } .dot1, .key1 { fill: #bf8700; } .dot2, .key2 { fill: #2da44e; }
.dot3, .key3 { fill: #a475f9; } .dot4, .key4 { fill: #e5534b; } .dot5, .key5 { fill: #1b9aaa; }
"""


def svg_file(title: str, plots: Sequence[tuple[str, Sequence[PlotLine]]], x: str) -> str:
    """The plots below each other: (what its axis is, lines), each with a value."""
    height = (HEIGHT + _HEAD) * len(plots)
    parts = []
    for place, (label, lines) in enumerate(plots):
        keys = Markup("").join(
            Markup('<tspan class="key{}" dx="8">{}</tspan>').format(n % COLOURS, line.name)
            for n, line in enumerate(lines)
        )
        parts.append(
            Markup(
                '<g transform="translate(0 {})"><text x="4" y="20">{}{}</text>'
                '<g transform="translate(0 {})">{}</g></g>'
            ).format(place * (HEIGHT + _HEAD), label, keys, _HEAD - 8, drawing(lines, x))
        )
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" width="{}" role="img" '
        'aria-label="{}"><style>{}</style>{}</svg>\n'
    ).format(WIDTH, height, 2 * WIDTH, title, Markup(_STYLE), Markup("").join(parts))
