"""The date that a chat template writes: one moment for all prompts of a campaign.

Templates ask `strftime_now(format)`, which transformers answers with the clock, time zone and
locale of the process: a rollout that is resumed on another day or host would get other tokens. A
macro of the same name stands before the template instead and answers from `template_date`, which
each rendering is given; transformers takes no functions there. Used by `tokenizer`.
"""

from datetime import UTC, datetime
from typing import Any

_MACRO = (
    "{% macro strftime_now(format) %}"
    "{% for part in format.split('%%') %}{% if not loop.first %}%{% endif %}"
    "{% set told = namespace(text=part) %}"
    "{% for code, value in template_date.items() %}"
    "{% set told.text = told.text | replace(code, value) %}"
    "{% endfor %}{{ told.text }}{% endfor %}"
    "{% endmacro %}"
)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = "dmYyHIMSfjUWwuGVFDTRenCgzZ"
_UNPADDED = ("%-d", "%-m", "%-y", "%-H", "%-I", "%-M", "%-S", "%-j")


def with_fixed_date(template: Any) -> Any:
    """`template`: text, or several by name."""
    if isinstance(template, dict):
        return {name: with_fixed_date(part) for name, part in template.items()}
    return _MACRO + template if "strftime_now" in template else template


def directives(at: datetime) -> dict[str, str]:
    """Value of each directive of strftime, in UTC and the C locale."""
    at = at.astimezone(UTC)
    values = {f"%{letter}": at.strftime(f"%{letter}") for letter in _NUMBERS}
    values |= {directive: at.strftime(directive) for directive in _UNPADDED}
    month, day = _MONTHS[at.month - 1], _DAYS[at.weekday()]
    values |= {"%B": month, "%b": month[:3], "%h": month[:3], "%A": day, "%a": day[:3]}
    values |= {"%p": "AM" if at.hour < 12 else "PM"}
    values |= {"%x": at.strftime("%m/%d/%y"), "%X": at.strftime("%H:%M:%S")}
    values["%c"] = f"{day[:3]} {month[:3]} {at.day:2d} {at.strftime('%H:%M:%S %Y')}"
    return values
