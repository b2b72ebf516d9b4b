"""A page: its address, its template, and the query that gives what it shows.

Each file of `pages` has a PAGE, or several. Imported by `app` and by pages.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from view.page_request import PageRequest
from view.viewer import Viewer


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    """Pattern of its address; the same with .json at the end gives its data."""
    template: str
    read: Callable[[Viewer, PageRequest], Awaitable[Any]]
    """Gives a frozen dataclass. Raises UnknownId, UsageError, DatabaseError."""
