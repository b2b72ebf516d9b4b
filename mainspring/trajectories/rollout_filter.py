"""The filter of `mainspring rollout retry --where`: conditions on fields, joined by "and".

    field = value      field != value      field contains value
    field is null      field is not null

Fields are verdict, stop, fault, split, task, version, step and group; a value may
stand in quotes. Pure: the command line turns the conditions into a query
(`infra.db.reading.rollout_search`).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from mainspring.errors import UsageError
from mainspring.status import StopReason, Verdict

_CONDITION = re.compile(
    r"\s*(?P<field>\w+)\s*"
    r"(?:(?P<null>is\s+(?P<not>not\s+)?null)|(?P<op>!=|=|contains\b)\s*"
    r"(?:'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<bare>[^\s'\"]+)))\s*",
    re.IGNORECASE,
)
_AND = re.compile(r"and\b", re.IGNORECASE)
_WORDS: dict[str, type[StrEnum]] = {"verdict": Verdict, "stop": StopReason}
_REMEDY = """write for example: fault is not null and split = 'test'"""


class Field(StrEnum):
    VERDICT = "verdict"
    """Result of its grading."""
    STOP = "stop"
    """Why the rollout ended."""
    FAULT = "fault"
    """Cause for which it was masked."""
    SPLIT = "split"
    """Split of its task."""
    TASK = "task"
    """Its task's id."""
    VERSION = "version"
    """Policy version of its group."""
    STEP = "step"
    """Training step that took its group."""
    GROUP = "group"
    """Its group's id."""


class Op(StrEnum):
    EQUALS = "="
    """Exactly this value."""
    DIFFERS = "!="
    """Another value, or none."""
    CONTAINS = "contains"
    """The value is part of it."""
    IS_NULL = "is null"
    """It has none."""
    IS_NOT_NULL = "is not null"
    """It has one."""


@dataclass(frozen=True, slots=True)
class Condition:
    field: Field
    op: Op
    value: str = ""


def parse(text: str) -> list[Condition]:
    """Raises UsageError that names what is wrong."""
    conditions: list[Condition] = []
    at = 0
    while True:
        match = _CONDITION.match(text, at)
        if match is None:
            raise UsageError(f"--where {text!r}: no condition at {text[at:]!r}", remedy=_REMEDY)
        conditions.append(_condition(text, match))
        at = match.end()
        if at == len(text):
            return conditions
        joined = _AND.match(text, at)
        if joined is None:
            raise UsageError(f"--where {text!r}: expected `and` at {text[at:]!r}", remedy=_REMEDY)
        at = joined.end()


def _condition(text: str, match: re.Match[str]) -> Condition:
    name = match["field"].lower()
    if name not in list(Field):
        raise UsageError(
            f"--where {text!r}: {match['field']!r} is not a field",
            remedy=f"the fields are {', '.join(Field)}",
        )
    if match["null"]:
        return Condition(Field(name), Op.IS_NOT_NULL if match["not"] else Op.IS_NULL)
    quoted = (match["single"], match["double"], match["bare"])
    value = next(group for group in quoted if group is not None)
    op = Op(match["op"].lower())
    words = _WORDS.get(name)
    if words is not None and op is not Op.CONTAINS and value not in list(words):
        raise UsageError(
            f"--where {text!r}: {value!r} is not a {name}", remedy=f"one of {', '.join(words)}"
        )
    return Condition(Field(name), op, value)
