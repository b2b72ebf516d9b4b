"""Plots as SVG, drawn here: they are in the first byte of a page, print, and need no script.

Invariants: each plot has a title and a table of its numbers for those who cannot see it; colours
are classes of the style sheet, and lines differ by dashes as well. Pure. Imported by `rendering`,
`bars` and pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, log10

from markupsafe import Markup

from mainspring.words.figures import number

WIDTH, HEIGHT = 360, 130
LEFT, RIGHT, _TOP, _BOTTOM = 44, 8, 8, 20
MAX_POINTS = 400
"""A line has no more: a plot is no wider than that in pixels."""
MAX_ROWS = 200
COLOURS = 6
LOG_FROM = 30.0
"""A logarithmic axis is used where the largest value is this often the smallest."""
"""Rows of the table beside a plot."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    name: str
    points: Sequence[tuple[float, float | None]]
    """None: not measured there."""
    marks: bool = False
    """Drawn as dots that no line joins."""
    band: Sequence[tuple[float, float, float]] = ()
    """(x, lowest, highest): an interval around points."""


def curve(
    title: str,
    *lines: PlotLine,
    x: str = "step",
    at_least: float | None = None,
    note: str = "",
    log: bool = False,
) -> Markup:
    """A figure with the lines over a common axis. `at_least`: a value that the axis shows. `log`:
    the axis is logarithmic where the values span orders of magnitude, and zero is its lower end."""
    known = [
        PlotLine(line.name, _known(line.points), line.marks, line.band)
        for line in lines
        if _known(line.points)
    ]
    if not known:
        return Markup(
            '<figure class="plot"><figcaption>{}</figcaption><p class="none">not measured'
            " yet</p></figure>"
        ).format(title)
    return figure(title, known, drawing(known, x, at_least, log), x, note)


def drawing(
    lines: Sequence[PlotLine], x: str = "step", at_least: float | None = None, log: bool = False
) -> Markup:
    """The lines with their axes, in a field of WIDTH by HEIGHT; each has a value."""
    scale = _scale(lines, at_least, log)
    parts = [*axes(scale, x)]
    for place, line in enumerate(lines):
        parts += _line(scale, place % COLOURS, line)
    return Markup("").join(parts)


def figure(title: str, lines: Sequence[PlotLine], drawn: Markup, x: str, note: str = "") -> Markup:
    """The drawing with its title, key, explanation and the table of its numbers."""
    svg = Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="curve">{}</svg>'
    ).format(WIDTH, HEIGHT, title, drawn)
    told = Markup('<p class="note">{}</p>').format(note) if note else ""
    return Markup('<figure class="plot"><figcaption>{} {}</figcaption>{}{}{}</figure>').format(
        title, _legend(lines), svg, told, _table(lines, x)
    )


def event_lane(marks: Mapping[float, Sequence[str]], first: float, last: float) -> Markup:
    """Losses and recoveries, below plots over the same steps; empty where there were none."""
    if not marks:
        return Markup("")
    scale = Scale(min(first, *marks), max(last, *marks), 0.0, 1.0)
    drawn = [
        Markup(
            '<polygon points="{:.1f},6 {:.1f},6 {:.1f},14" class="fill-masked">'
            "<title>before step {}: {}</title></polygon>"
        ).format(x - 5, x + 5, x, ceil(place), "; ".join(texts))
        for place, texts in marks.items()
        for x in (scale.x(place),)
    ]
    number_of = sum(len(texts) for texts in marks.values())
    return Markup(
        '<figure class="plot"><figcaption>Lost and recovered <span class="last">{}</span>'
        '</figcaption><svg viewBox="0 0 {} 20" role="img" aria-label="{} events" class="curve">'
        '<line x1="{}" x2="{}" y1="16" y2="16" class="grid"/>{}</svg></figure>'
    ).format(number_of, WIDTH, number_of, LEFT, WIDTH - RIGHT, Markup("").join(drawn))


def bars(parts: Sequence[tuple[str, str, float]]) -> Markup:
    """One bar of several parts: (kind, word, value)."""
    total = sum(value for _, _, value in parts)
    if not total:
        return Markup("")
    at, drawn = 0.0, []
    for kind, word, value in parts:
        width = 100 * value / total
        drawn.append(
            Markup(
                '<rect x="{:.2f}" y="0" width="{:.2f}" height="10" class="fill-{}"><title>{} {}'
                "</title></rect>"
            ).format(at, max(width - 0.3, 0.2), kind, word, number(value))
        )
        at += width
    told = ", ".join(f"{word} {number(value)}" for _, word, value in parts)
    return Markup(
        '<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{}" '
        'class="bar">{}</svg>'
    ).format(told, Markup("").join(drawn))


def sparkline(values: Sequence[float | None]) -> Markup:
    """A small line without axes; empty where there are fewer than two values."""
    points = [(n, value) for n, value in enumerate(values) if value is not None and isfinite(value)]
    if len(points) < 2:
        return Markup("")
    low, high = min(v for _, v in points), max(v for _, v in points)
    spread = (high - low) or 1.0
    last = points[-1][0] or 1
    path = " ".join(
        f"{78 * n / last + 1:.1f},{17 - 14 * (v - low) / spread:.1f}" for n, v in points
    )
    return Markup(
        '<svg viewBox="0 0 80 20" role="img" aria-label="from {} to {}" class="spark">'
        '<polyline points="{}" class="line0"/></svg>'
    ).format(number(points[0][1]), number(points[-1][1]), path)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places in the drawing."""

    x_low: float
    x_high: float
    low: float
    high: float
    is_log: bool = False

    def x(self, value: float) -> float:
        spread = (self.x_high - self.x_low) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.x_low) / spread

    def y(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = log10(max(value, low)), log10(low), log10(high)
        spread = (high - low) or 1.0
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / spread

    def between(self, share: float) -> float:
        """The value at a share of the axis' height."""
        if self.is_log:
            return self.low * (self.high / self.low) ** share
        return self.low + share * (self.high - self.low)


def _known(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float]]:
    known = [(x, y) for x, y in points if y is not None and isfinite(y)]
    stride = max(1, ceil(len(known) / MAX_POINTS))
    thinned = known[::stride]
    return thinned if not known or thinned[-1] == known[-1] else [*thinned, known[-1]]


def _scale(lines: Sequence[PlotLine], at_least: float | None, log: bool) -> Scale:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points if y is not None]
    ys += [edge for line in lines for _, *edges in line.band for edge in edges]
    low, high = min(0.0, *ys), max(ys)
    if at_least is not None:
        high = max(high, at_least)
    if high == low:
        high = low + 1.0
    positive = min((y for y in ys if y > 0), default=high)
    if log and low >= 0 and high / positive > LOG_FROM:
        return Scale(min(xs), max(xs), positive, high, is_log=True)
    return Scale(min(xs), max(xs), low, high)


def axes(scale: Scale, x: str) -> list[Markup]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        value = scale.between(share)
        y = scale.y(value)
        parts.append(
            Markup(
                '<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" class="grid"/>'
                '<text x="{}" y="{:.1f}" class="tick" text-anchor="end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 4, y + 4, number(value))
        )
    for value, anchor in ((scale.x_low, "start"), (scale.x_high, "end")):
        parts.append(
            Markup('<text x="{:.1f}" y="{}" class="tick" text-anchor="{}">{} {}</text>').format(
                scale.x(value), HEIGHT - 5, anchor, x, number(value)
            )
        )
        if scale.x_low == scale.x_high:
            break
    return parts


def _line(scale: Scale, place: int, line: PlotLine) -> list[Markup]:
    drawn = []
    for x, low, high in line.band:
        drawn.append(
            Markup(
                '<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" class="interval line{}"/>'
            ).format(scale.x(x), scale.x(x), scale.y(low), scale.y(high), place)
        )
    known = [(x, y) for x, y in line.points if y is not None]
    if not line.marks and len(known) > 1:
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in known)
        drawn.append(Markup('<polyline points="{}" class="line{}"/>').format(path, place))
    if line.marks or len(known) < 30:
        for x, y in known:
            drawn.append(
                Markup(
                    '<circle cx="{:.1f}" cy="{:.1f}" r="{}" class="dot{}"><title>{} {}: {}</title>'
                    "</circle>"
                ).format(
                    scale.x(x),
                    scale.y(y),
                    3 if line.marks else 2,
                    place,
                    line.name,
                    number(x),
                    number(y, 4),
                )
            )
    return drawn


def _legend(lines: Sequence[PlotLine]) -> Markup:
    if len(lines) == 1:
        return Markup('<span class="last">{}</span>').format(number(_last(lines[0]), 3))
    keys = [
        Markup('<span class="key"><i class="swatch{}"></i>{} {}</span>').format(
            place % COLOURS, line.name, number(_last(line), 3)
        )
        for place, line in enumerate(lines)
    ]
    return Markup(" ").join(keys)


def _last(line: PlotLine) -> float | None:
    return next((value for _, value in reversed(line.points) if value is not None), None)


def _table(lines: Sequence[PlotLine], x: str) -> Markup:
    at: dict[float, dict[str, float | None]] = {}
    for line in lines:
        for place, value in line.points:
            at.setdefault(place, {})[line.name] = value
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(line.name) for line in lines)
    rows = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            number(place),
            Markup("").join(
                Markup("<td>{}</td>").format(number(values.get(line.name), 4)) for line in lines
            ),
        )
        for place, values in sorted(at.items())[-MAX_ROWS:]
    )
    return Markup(
        '<details class="numbers"><summary>numbers</summary><table><thead><tr><th scope="col">{}'
        "</th>{}</tr></thead><tbody>{}</tbody></table></details>"
    ).format(x, head, rows)
