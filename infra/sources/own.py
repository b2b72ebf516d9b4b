"""A task source of one's own, named as "package.module:Class". Imported by `resolve`.

Invariant: whatever is wrong with it is one UsageError that names it; no row that is no SourceRow
reaches the store.
"""

from collections.abc import Iterator
from typing import Any

from infra.sources.protocol import ImportOptions, SourceRow
from mainspring.errors import MainspringError, UsageError
from mainspring.named import find


class OwnSource:
    """Implements `protocol.TaskSource`."""

    def __init__(self, named: str, options: ImportOptions) -> None:
        """Raises ConfigError when nothing can be imported there, UsageError for no source."""
        self._named = named
        make: Any = find("task source", named, {})
        if not callable(make):
            raise UsageError(
                f"task source {named} is a {type(make).__name__}, expected a class",
                remedy="write it as `class Name: def __init__(self, options)` (docs/tasks.md)",
            )
        try:
            self._source: Any = make(options)
        except MainspringError:
            raise
        except Exception as error:
            raise UsageError(
                f"task source {named} cannot be made: {type(error).__name__}: {error}",
                remedy="its class takes the options of the import as one argument",
            ) from error
        if not callable(getattr(self._source, "rows", None)):
            raise UsageError(
                f"task source {named} lacks the method rows",
                remedy="a task source has the one method of infra/sources/protocol.py",
            )

    def rows(self) -> Iterator[SourceRow]:
        try:
            for row in self._source.rows():
                if not isinstance(row, SourceRow):
                    raise UsageError(
                        f"task source {self._named} gave a {type(row).__name__}, expected a "
                        "SourceRow",
                        remedy="see infra/sources/protocol.py",
                    )
                yield row
        except MainspringError:
            raise
        except Exception as error:
            raise UsageError(
                f"task source {self._named} failed: {type(error).__name__}: {error}",
                remedy="correct it and repeat the command; imported tasks are kept",
            ) from error
