"""The seam between whatever holds tasks and the store: a source yields rows, one task each.

Invariants: a row that cannot become a task is yielded with its RowError and does not end the
source; a source that cannot be read at all raises UsageError or ServiceError that names it. Rows
come in the same order each time. Imported by the sources beside this file and by the importer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mainspring.errors import UsageError
from mainspring.tasks.any_task import AnyTask


class RowProblem(StrEnum):
    """Why a row is not a task."""

    NOT_JSON = "not_json"
    """The line cannot be read as one JSON object; most often the file was cut short."""
    UNKNOWN_KIND = "unknown_kind"
    """Its fields are those of no kind of row that is known here."""
    MISSING_FIELD = "missing_field"
    """A field, or a file of a task folder, is not there or is empty."""
    WRONG_TYPE = "wrong_type"
    """A field holds something else than it should."""
    NOT_A_PATCH = "not_a_patch"
    """`patch` or `test_patch` is not what `git diff` writes."""
    NO_IMAGE = "no_image"
    """It names no image, or one that no registry could have."""
    NO_SPEC = "no_spec"
    """How to run this repository's tests at this version is not known."""
    UNKNOWN_PARSER = "unknown_parser"
    """The official library has no such log parser."""
    UNSUPPORTED = "unsupported"
    """It asks for something that sandboxes here do not do."""
    IMPOSSIBLE = "impossible"
    """No sandbox can run it, or no patch can resolve it."""
    NOT_STORABLE = "not_storable"
    """It holds a character or a number that Postgres cannot."""
    OTHER_CONTENT = "other_content"
    """Another task is stored under its id."""


class RowError(UsageError):
    """One row cannot become a task; the message tells what is wrong and what was expected."""

    def __init__(self, problem: RowProblem, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands."""

    file: str
    number: int | None = None
    """Its line in a file of lines, else its place in the list, from 1; None: the file is it."""

    def __str__(self) -> str:
        return self.file if self.number is None else f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class SourceRow:
    place: Place
    id: str
    """Empty when the row has none."""
    result: AnyTask | RowError


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Choices of the person who imports, for all rows."""

    name: str | None = None
    """Source to store the tasks under; None: the row's, or the source's own."""
    split: str | None = None
    """Only rows of this split; rows that name none are taken for it, or else for "train"."""
    image_template: str | None = None
    """See `infra.sources.image_rules`."""
    allow_hosts: tuple[str, ...] = ()
    """Given to every task besides its own."""
    id_prefix: str = ""
    """Put before every id, for sets that share tasks with another one."""


class TaskSource(Protocol):
    """Implement this one method to import tasks from elsewhere."""

    def rows(self) -> Iterator[SourceRow]:
        """Raises UsageError or ServiceError when the source as a whole cannot be read."""
        ...
