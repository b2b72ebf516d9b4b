"""An extension by its name here, or one of your own as "package.module:attribute".

Invariant: what cannot be found is refused with a list of what there is. Importing a path runs its
code, so only configurations name paths, never tasks or other data. Imported by every room that
has an extension point.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mainspring.errors import ConfigError, MainspringError

T = TypeVar("T")


def is_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon and module and attribute)


def find(what: str, name: str, known: Mapping[str, T]) -> T | Any:
    """`known[name]`, or the object at a path. `what`: the extension point, for the message.

    Raises ConfigError.
    """
    if name in known:
        return known[name]
    if not is_path(name):
        raise ConfigError(
            f"no {what} is called {name!r}",
            remedy=f'choose from {", ".join(known)}, or name your own as "package.module:name"'
            if known
            else 'name your own as "package.module:name"',
        )
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigError(
            f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}",
            remedy="install its package where commands and workers run"
            + (f", or choose from {', '.join(known)}" if known else ""),
        ) from error


def find_class(
    what: str, name: str, known: Mapping[str, Any], methods: Sequence[str], takes: str
) -> Any:
    """`known[name]`, or the class at a path, which must have `methods`; it is not made. `takes`:
    the argument that it is made of, for the message. Raises ConfigError."""
    found = find(what, name, known)
    if name in known:
        return found
    ours = f"; or choose from {', '.join(known)}" if known else ""
    if not inspect.isclass(found):
        raise ConfigError(
            f"{what} {name!r} is a {type(found).__name__}, expected a class",
            remedy=f"write it as `class Name: def __init__(self, {takes})`{ours}",
        )
    missing = [method for method in methods if not callable(getattr(found, method, None))]
    if missing:
        raise ConfigError(
            f"{what} {name!r} lacks {', '.join(missing)}",
            remedy=f"its methods are {', '.join(methods)}: see docs/extending.md{ours}",
        )
    return found


def make(what: str, name: str, found: Any, argument: object) -> Any:
    """An object of the class that `find_class` gave. Raises ConfigError."""
    try:
        return found(argument)
    except MainspringError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{what} {name!r} cannot be made: {type(error).__name__}: {error}",
            remedy="its class takes one argument: see docs/extending.md",
        ) from error
