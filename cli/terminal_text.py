"""Text that commands print in lines.

Invariant: text from elsewhere (models, tasks, commands, failures, names of machines) reaches a
terminal through here or through `cli.tables`, and steers none. JSON escapes its own. Imported by
commands and screens.
"""

import typer

from mainspring.words.plain_text import plain

__all__ = ["echo", "plain"]


def echo(text: str, *, err: bool = False, dim: bool = False, colour: str | None = None) -> None:
    """Print a line. On standard output, or on the one for errors."""
    typer.secho(plain(text), err=err, dim=dim or None, fg=colour)
