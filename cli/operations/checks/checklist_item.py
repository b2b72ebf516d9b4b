"""One line of the checklist before a campaign: what is needed, and whether it is there."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    """It is there and fit."""
    STARTS = "starts"
    """The command starts it."""
    WARNING = "warning"
    """Not visible from this machine, needed later only, or a setting that does nothing."""
    MISSING = "missing"
    """The campaign cannot run without it."""


@dataclass(frozen=True, slots=True)
class Item:
    what: str
    state: State
    found: str
    fix: str = ""
    """Remedy of what is missing."""
    is_service: bool = False
    """A missing service or machine, as opposed to wrong input."""
