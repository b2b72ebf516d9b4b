"""Templates of the pages: one environment that escapes everything.

Invariants: autoescape is on for every template; text from elsewhere goes through `drawn`; no page
has an inline script or style. Imported by `app`.
"""

import json
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel

from mainspring.words import ends, figures
from view import hostile_text
from view.drawing import plots
from view.page_request import json_url, url
from view.standing import standing

FOLDER = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "drawn": lambda text: hostile_text.drawn(hostile_text.bounded(str(text))),
        "short": _short,
        "visible": hostile_text.visible,
        "exact": hostile_text.exact,
        "sentence": lambda text: text[:1].upper() + text[1:],
        "number": lambda value, digits=2: figures.number(value, digits),
        "duration": figures.duration,
        "percent": figures.percent,
        "dollars": figures.dollars,
        "when": _when,
        "words": _words,
        "told": _told,
    }
    made.globals |= {
        "excerpt": hostile_text.excerpt,
        "url": url,
        "json_url": json_url,
        "standing": standing,
        "share_of": figures.share_of,
        "plots": plots,
        "is_frozen": False,
        "ENDS": ends.ENDS,
        "VERDICTS": ends.VERDICTS,
        "SUSPICIONS": ends.SUSPICIONS,
        "UNTRAINED": ends.UNTRAINED,
    }
    return made


def render(template: str, **values: Any) -> str:
    # A page is sent as UTF-8, which has no halves of characters; `drawn` leaves none.
    text = environment().get_template(template).render(**values)
    return text.encode("utf-8", "replace").decode()


def as_json(page: Any) -> str:
    """`page` as a JSON document, whatever text is in it."""
    return json.dumps(_finite(json.loads(json.dumps(page, default=_plain))), allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinities: null stands for them."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


def _short(text: Any, length: int = 60) -> Markup:
    """The first line, cut."""
    line = " ".join(str(text).split())
    if len(line) <= length:
        return hostile_text.drawn(line)
    shown, whole = hostile_text.drawn(line[: length - 3]), hostile_text.bounded(line[:1000])
    return Markup('<span title="{}">{}...</span>').format(hostile_text.visible(whole), shown)


def _when(at: datetime | None) -> Markup:
    if at is None:
        return escape("-")
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%SZ}", f"{utc:%Y-%m-%d %H:%M:%S}"
    )


def _words(value: Any) -> str:
    return "-" if value is None else str(value).replace("_", " ")


def _told(value: Any, indent: int | None = None) -> str:
    """A value as JSON; other letters than ASCII are escaped, so that none can hide."""
    return json.dumps(value, default=_plain, indent=indent)
