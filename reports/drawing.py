"""matplotlib figures as inline SVG that follows the page's colours.

Colours are drawn as place holders and swapped for CSS variables, so one drawing serves the light
and the dark page. Text stays text. matplotlib is imported on the first call: it takes a second.
"""

import io
import re
from collections.abc import Callable
from typing import Any

_VARIABLES = {
    "#010101": "var(--ink-soft)",
    "#020202": "var(--line)",
    "#030303": "var(--blue)",
    "#040404": "var(--green)",
    "#050505": "var(--amber)",
    "#060606": "var(--violet)",
    "#070707": "var(--red)",
    "#080808": "var(--card)",
}
INK, LINE, BLUE, GREEN, AMBER, VIOLET, RED, CARD = _VARIABLES

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "font.size": 9,
    "font.family": "sans-serif",
}
_WIDTH_IN, _HEIGHT_IN = 4.9, 2.7


def svg(title: str, paint: Callable[[Any, Any], None], data: Any, rows: int) -> str:
    """Drawing by `paint` of `data` on `rows` axes, one above the other."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # The salt keeps the ids of several drawings in one page apart, and the file reproducible.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, 1)
        paint(axes, data)
        out = io.StringIO()
        figure.savefig(
            out,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return _for_the_page(out.getvalue(), title)


_UNUSED_IDS = re.compile(
    r' id="(?:figure|axes|patch|line2d|text|legend|matplotlib|xtick|ytick'
    r'|PathCollection|LineCollection|FillBetween)[\w.]*"'
)


def _for_the_page(svg: str, title: str) -> str:
    """Only the drawing: no prologue, no page-wide style, no ids that several plots share."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = _UNUSED_IDS.sub("", svg)
    svg = re.sub(
        r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{title}"', svg, count=1
    )
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    return re.sub(r"#(0[1-8])\1\1", lambda match: _VARIABLES[match[0]], svg)
