"""A task source of one's own, named as "package.module:Class". Imported by `resolve`.

Invariant: whatever is wrong with it is one UsageError that names it; no row that is no SourceRow
reaches the store.
"""

from collections.abc import Iterator
from typing import Any

from infra.sources.protocol import ImportOptions, SourceRow
from mainspring.config.named import find_class, make
from mainspring.errors import MainspringError, UsageError


class OwnSource:
    """Implements `protocol.TaskSource`."""

    def __init__(self, named: str, options: ImportOptions) -> None:
        """Raises ConfigError when no source can be imported and made of it."""
        self._named = named
        found = find_class("task source", named, {}, ("rows",), "options")
        self._source: Any = make("task source", named, found, options)

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
