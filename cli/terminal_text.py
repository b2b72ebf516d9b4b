"""Text that commands print in lines.

Invariant: text from elsewhere (models, tasks, commands, failures, names of machines) reaches a
terminal through here or through `cli.tables`, and steers none. JSON escapes its own. Imported by
commands and screens.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from mainspring.words.plain_text import plain

__all__ = ["drawn", "echo", "panel_on", "plain"]


def echo(text: str, *, err: bool = False, dim: bool = False, colour: str | None = None) -> None:
    """Print a line. On standard output, or on the one for errors; above a panel that is drawn."""
    panel = panel_on((sys.stderr if err else sys.stdout).isatty())
    if panel is None:
        typer.secho(plain(text), err=err, dim=dim or None, fg=colour)
    else:
        styles = filter(None, ("dim" if dim else "", colour))
        panel.print(plain(text), style=" ".join(styles), soft_wrap=True)


@contextmanager
def drawn(panel: Any) -> Iterator[None]:
    """While a panel is redrawn at the foot of the terminal. `panel`: its console. What another one
    prints would stand in the middle, and a dead copy of the panel above it."""
    _panels.append(panel)
    try:
        yield
    finally:
        _panels.remove(panel)


def panel_on(is_terminal: bool) -> Any:
    """The console of the panel that is drawn on the terminal; None: print as usual."""
    return _panels[-1] if _panels and is_terminal else None


_panels: list[Any] = []
