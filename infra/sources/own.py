"""A task source of one's own, named as "package.module:Class" or "folder/file.py:Class".

Invariant: whatever is wrong with it is one UsageError that names it; no row that is no SourceRow
reaches the store. Imported by `resolve`.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.sources.protocol import ImportOptions, SourceRow, TaskSource
from mainspring.config.registry import Registry
from mainspring.errors import MainspringError, UsageError

SOURCES: Registry[Callable[[ImportOptions], TaskSource]] = Registry(
    "task source", takes="options", methods=("rows",)
)
"""Sources of your own, which are named by their paths only: `resolve` tells the others by what they
are."""


def _findable(name: str) -> str:
    """A class in a file, as one in a module that Python finds. Raises UsageError."""
    file, _, class_name = name.rpartition(":")
    path = Path(file)
    if path.suffix != ".py":
        return name
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy="check the path before the colon")
    sys.path.append(str(path.absolute().parent))
    return f"{path.stem}:{class_name}"


class OwnSource:
    """Implements `protocol.TaskSource`."""

    def __init__(self, name: str, options: ImportOptions) -> None:
        """Raises ConfigError when no source can be imported and made of it."""
        name = self._name = _findable(name)
        SOURCES.check(name)
        self._source = SOURCES.make(name, options)

    def rows(self) -> Iterator[SourceRow]:
        try:
            for row in self._source.rows():
                if not isinstance(row, SourceRow):
                    raise UsageError(
                        f"task source {self._name} gave a {type(row).__name__}, expected a "
                        "SourceRow",
                        remedy="see infra/sources/protocol.py",
                    )
                yield row
        except MainspringError:
            raise
        except Exception as error:
            raise UsageError(
                f"task source {self._name} failed: {type(error).__name__}: {error}",
                remedy="correct it and repeat the command; imported tasks are kept",
            ) from error
