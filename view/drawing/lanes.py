"""Lanes over time as SVG: what ran beside what, from a beginning to an end.

Pure. Imported by `pages`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from mainspring.words.figures import duration
from view.hostile_text import visible

WIDTH, ROW, LABEL = 720, 18, 150
MAX_CHARS = 22


@dataclass(frozen=True, slots=True)
class Span:
    kind: str
    """Class of its colour."""
    word: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Lane:
    label: str
    spans: Sequence[Span]


def lanes(title: str, rows: Sequence[Lane]) -> Markup:
    """Empty where nothing has happened."""
    spans = [span for row in rows for span in row.spans]
    if not spans:
        return Markup("")
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    whole_s = max((end - start).total_seconds(), 0.001)
    height = ROW * len(rows) + 20
    parts = []
    for place, row in enumerate(rows):
        y = ROW * place
        label = visible(row.label)
        label = label if len(label) <= MAX_CHARS else label[: MAX_CHARS - 3] + "..."
        parts.append(Markup('<text x="0" y="{}" class="tick">{}</text>').format(y + 13, label))
        for span in row.spans:
            x = LABEL + (WIDTH - LABEL) * (span.start - start).total_seconds() / whole_s
            width = (WIDTH - LABEL) * (span.end - span.start).total_seconds() / whole_s
            took = duration((span.end - span.start).total_seconds())
            parts.append(
                Markup(
                    '<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" class="fill-{}">'
                    "<title>{}: {}</title></rect>"
                ).format(x, y + 3, max(width, 1.0), ROW - 6, span.kind, visible(span.word), took)
            )
    axis = ROW * len(rows) + 14
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        parts.append(
            Markup('<text x="{:.0f}" y="{}" class="tick" text-anchor="{}">{}</text>').format(
                LABEL + (WIDTH - LABEL) * share, axis, anchor, duration(share * whole_s)
            )
        )
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="lanes">{}</svg>'
    ).format(WIDTH, height, title, Markup("").join(parts))
