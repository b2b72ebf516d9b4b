"""The output of a rank: a file beside the other logs, so that an error of CUDA, NCCL or the linker
outlives the rank. Of each rank the current life and the one before are kept, each bounded.
"""

import os
import re
from pathlib import Path

from mainspring.words.plain_text import plain

MAX_BYTES = 4 << 20
TAIL_LINES = 4
TAIL_BYTES = 4 << 10
_STDOUT, _STDERR = 1, 2
_WARNING = re.compile(r"^.*:\d+: \w*Warning: .*\n(?:  .*(?:\n|$))?", re.MULTILINE)
"""With the line of code below it."""


def rank_log(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.log"


def redirect(log: Path) -> None:
    """Send what this process prints, and its libraries, to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (_STDOUT, _STDERR):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def bound(log: Path) -> None:
    """Begin again when the log is too long; called between two calls to the rank."""
    if log.exists() and log.stat().st_size > MAX_BYTES:
        os.truncate(log, 0)


def last_words(log: Path) -> str:
    """The end of what a rank printed, in one line and without Python's warnings, which libraries
    print at each start; empty when it printed nothing."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        text = _WARNING.sub("", plain(file.read().decode(errors="replace")))
    lines = text.splitlines()
    return " | ".join(line.strip() for line in lines[-TAIL_LINES:] if line.strip())
