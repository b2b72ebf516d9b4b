"""One extension point: what is called by a name here, and one of your own as
"package.module:attribute".

Invariants: each name is there once, and stands for one thing; what cannot be found is refused with
a list of what there is. What stands in the table is checked when it is declared, or, where it is a
path (its module is heavy), when it is found; one of your own by `check`, before a run is stored.
Importing a path runs its code, so only configurations name paths, never tasks or other data.
`mainspring.extensions` lists all registries; each stands beside its noun.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mainspring.errors import ConfigError, MainspringError

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")


FOLDERS = "MAINSPRING_IMPORTS"
"""Variable with the folders that modules of one's own are found in as well: that of the campaign
file, which the processes of its command inherit."""


def search_own_folders() -> None:
    """After everything else, so that a file there hides no package; unlike PYTHONPATH."""
    for folder in os.environ.get(FOLDERS, "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)


def is_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon and module and attribute)


class Registry(Mapping[str, T]):
    """As a mapping: its table, which imports what it gives."""

    def __init__(
        self,
        what: str,
        table: Iterable[tuple[str, T | str]] = (),
        *,
        takes: str = "",
        methods: Sequence[str] | None = None,
        also: Iterable[str] = (),
        require: Callable[[str, Any], None] | None = None,
        may_await: bool = False,
    ) -> None:
        """`what`: the extension point, for messages. `table`: pairs of a name and an object or its
        path. `takes`: the arguments of such a function, or with `methods` what such a class is
        made of. `also`: names that its field takes and that need nothing of the table. `require`
        raises ConfigError for what is not right yet, given how it is called in messages.
        `may_await`: a function may be async.

        Raises ConfigError."""
        self.what = what
        self.also = tuple(also)
        self.methods = methods
        self.takes = takes
        self.require = require
        self.may_await = may_await
        self._table: dict[str, T | str] = {}
        for name, entry in table:
            if name in self._table or name in self.also or is_path(name):
                problem = "is called like a path" if is_path(name) else "is named twice"
                raise ConfigError(
                    f"{what} {name!r} {problem}",
                    remedy=f"give each {what} a name of its own, without a colon",
                )
            self._table[name] = entry
            if not isinstance(entry, str):
                self._check_shape(name, entry)

    def __getitem__(self, name: str) -> T:
        if name not in self._table:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def names(self) -> str:
        """For messages."""
        return ", ".join((*self._table, *self.also))

    def path_of(self, name: str) -> str:
        """The object of one that the table has as a path."""
        path = self._table[name]
        assert isinstance(path, str), name
        return path

    def find(self, name: str) -> T:
        """The object of this name, or at this path. Raises ConfigError."""
        entry = self._table.get(name, name)
        if not isinstance(entry, str):
            return entry
        imported: Any = self._imported(name, entry)
        if name in self._table:
            self._check_shape(name, imported)
        return imported

    def check(self, name: str) -> None:
        """Raises ConfigError where nothing can be used by this name. Imports what is not
        Mainspring's, and makes nothing of it."""
        if name in self._table or name in self.also:
            return
        imported = self.find(name)
        self._check_shape(name, imported)
        path = f"{getattr(imported, '__module__', '')}:{getattr(imported, '__qualname__', '')}"
        for own_name, entry in self._table.items():
            if entry is imported or entry == path:
                raise ConfigError(
                    f"{self.what} {name!r} is called {own_name!r} here",
                    remedy=f'write "{own_name}", so that all see that it is Mainspring\'s',
                )

    def make(self: "Registry[Callable[[A], R]]", name: str, argument: A) -> R:
        """An object of the class of this name. Raises ConfigError."""
        made_of = self.find(name)
        try:
            return made_of(argument)
        except MainspringError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.what} {name!r} cannot be made: {type(error).__name__}: {error}",
                remedy="its class takes one argument: see docs/extending.md",
            ) from error

    def _imported(self, name: str, path: str) -> Any:
        if not is_path(path):
            raise ConfigError(
                f"no {self.what} is called {name!r}",
                remedy=f'choose from {self.names}, or name your own as "package.module:name"'
                if self.names
                else 'name your own as "package.module:name"',
            )
        module, _, attribute = path.partition(":")
        search_own_folders()
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise ConfigError(
                f"{self.what} {name!r} cannot be imported: {type(error).__name__}: {error}",
                remedy="put its file beside the campaign file, or install its package where "
                "commands and workers run"
                + (f", or choose from {self.names}" if self.names else ""),
            ) from error

    def _check_shape(self, name: str, candidate: Any) -> None:
        if self.methods is not None:
            self._check_class(name, candidate, self.methods)
        elif self.takes:
            self._check_function(name, candidate)
        if self.require is not None:
            self.require(f"{self.what} {name!r}", candidate)

    def _check_class(self, name: str, candidate: Any, methods: Sequence[str]) -> None:
        choices = f"; or choose from {self.names}" if self.names else ""
        taken = ", ".join(filter(None, ("self", self.takes)))
        if not inspect.isclass(candidate):
            raise ConfigError(
                f"{self.what} {name!r} is a {type(candidate).__name__}, expected a class",
                remedy=f"write it as `class Name: def __init__({taken})`{choices}",
            )
        missing = [method for method in methods if not callable(getattr(candidate, method, None))]
        if missing:
            raise ConfigError(
                f"{self.what} {name!r} lacks {', '.join(missing)}",
                remedy=f"its methods are {', '.join(methods)}: see docs/extending.md{choices}",
            )

    def _check_function(self, name: str, candidate: Any) -> None:
        remedy = f"write it as `def name({self.takes})` (docs/extending.md)"
        remedy += f", or choose from {self.names}" if self.names else ""
        is_coroutine = inspect.iscoroutinefunction(candidate) and not self.may_await
        # A class could be called too, and would give an object instead of an answer.
        if not callable(candidate) or inspect.isclass(candidate) or is_coroutine:
            kind = "coroutine function" if is_coroutine else type(candidate).__name__
            raise ConfigError(
                f"{self.what} {name!r} is a {kind}, expected a plain function", remedy=remedy
            )
        arguments = [
            argument for argument in self.takes.split(", ") if not argument.startswith("**")
        ]
        try:
            # Options are those of a configuration, which binds them itself.
            signature = inspect.signature(candidate)
            bind = signature.bind_partial if "**" in self.takes else signature.bind
            bind(*arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self.what} {name!r} cannot be called as ({self.takes}): {error}", remedy=remedy
            ) from None
