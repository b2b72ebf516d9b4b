"""What commands print, without what would steer a terminal.

Invariant: text from elsewhere (models, tasks, commands, failures, names of machines) reaches a
terminal through here or through `cli.tables`, and is never an escape sequence, a control character
or an override of the reading direction. JSON escapes its own. Imported by screens.
"""

import re

import typer

_STEERING = re.compile(
    # Strings for the terminal, up to their end: titles, links, clipboard (OSC); DCS, SOS, PM, APC.
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    # Colours, positions, erasing (CSI), and the short sequences.
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b[0-9=>A-OQ-WYZ`a-~\\]"
    # What is left of control characters, and of marks that turn the reading direction.
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_UNPRINTABLE = re.compile(r"[\ud800-\udfff]")
"""Halves of a character: no terminal's encoding has them."""


def plain(text: str) -> str:
    """`text` with its letters, its line breaks and its tabs."""
    return _UNPRINTABLE.sub("?", _STEERING.sub("", text))


def echo(text: str, *, err: bool = False, dim: bool = False, colour: str | None = None) -> None:
    """Print a line. On standard output, or on the one for errors."""
    typer.secho(plain(text), err=err, dim=dim or None, fg=colour)
