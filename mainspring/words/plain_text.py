"""Text from elsewhere, without what would steer a terminal.

Invariant: what is left has no escape sequence, no control character but line break and tab, and no
mark that turns the reading direction; letters stay, so that what steered cannot hide any. Pure.
Imported by screens (`cli.terminal_text`) and by the log of every process.
"""

import re

_STEERING = re.compile(
    # Strings for the terminal, up to their end: titles, links, clipboard (OSC); DCS, SOS, PM, APC.
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
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
