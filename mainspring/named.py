"""An extension by its name here, or one of your own as "package.module:attribute".

Invariant: what cannot be found is refused with a list of what there is. Importing a path runs its
code, so only configurations name paths, never tasks or other data. Imported by every room that
has an extension point.
"""

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from mainspring.errors import ConfigError

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
