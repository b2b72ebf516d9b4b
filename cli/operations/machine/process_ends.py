"""How a process that a command keeps has ended, in one sentence: its cause, and the log with the
rest.

Invariants: the cause is what this life of the process logged, not an earlier one; it is one line
without a traceback and without what steers a terminal; of a process that was killed nothing of its
log is taken for the cause, as what it logged before may have been dealt with. Used by what starts
processes: the fleet, its fork server, and the command that trains in the background.
"""

import itertools
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from mainspring.words.causes import memory_kills, shortened
from mainspring.words.plain_text import plain

CAUSE_CHARS = 200
TAIL_BYTES = 64 << 10
"""End of a log: a traceback is longer than a screen, and some loggers frame each of its lines."""
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Ends by another's doing; the other signals are faults of the process itself."""

SIGNAL_LINES = 20
NEAR_LINES = 40
"""From the end: an error that was logged before these was not the last thing that happened."""
MESSAGE_LINES = 10

_TRACEBACK = "Traceback (most recent call last):"
_INDENT = " |+-"
"""Before a line of code; in an exception group also frames."""
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<told>[A-Za-z_]\w*(?:: .*)?)")
"""As Python ends a traceback; the class without its module."""
_OWN = re.compile(r"(?:error|the \w+ ends): (?P<told>.+)")
_BESIDE = re.compile(r"\d{4}-\d\d-\d\d|[{\[+]|  |Traceback |error: |\s*$")
"""Lines that are not of the message before them: of a log, a remedy, the frame of a group."""
_FAULT = re.compile(
    r"\berror\b|\bfatal\b|\bfailed\b|\bpanic|\babort|terminate called|what\(\):", re.IGNORECASE
)
"""Lines that libraries in other languages print before they end their process."""
_BOX = re.compile(r"[\u2500-\u257f]+")
"""Around what the command line tells of its arguments."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    name: str
    code: int
    """Negative: the signal that ended it."""
    cause: str
    log: Path

    @property
    def how(self) -> str:
        return how_it_ended(self.code)

    def __str__(self) -> str:
        return f"{self.name} ended: {self.cause} ({self.how}; log {self.log})"


@dataclass(frozen=True, slots=True)
class LifeBegun:
    """Taken before a process is started, for what is asked about its end."""

    log: Path
    offset: int
    kills: int | None

    @classmethod
    def now(cls, log: Path) -> "LifeBegun":
        return cls(log, log.stat().st_size if log.exists() else 0, memory_kills())

    def ended(self, name: str, code: int) -> ProcessEnd:
        return ProcessEnd(name, code, self._cause(code), self.log)

    def _cause(self, code: int) -> str:
        if code == -signal.SIGKILL and self._is_out_of_memory():
            return "the kernel ended it: out of memory"
        if code in KILLED:
            return "it was killed from outside"
        text = self._text()
        if code < 0:  # a fault in the machine's code: what Python told long before is not its cause
            text = "\n".join(text.splitlines()[-SIGNAL_LINES:])
        if cause := cause_in(text):
            return cause
        return "it told no error" if code else "it came to its end"

    def _is_out_of_memory(self) -> bool:
        kills = memory_kills()
        return kills is not None and self.kills is not None and kills > self.kills

    def _text(self) -> str:
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                # A log that was emptied meanwhile holds this life alone.
                begin = self.offset if self.offset <= size else 0
                file.seek(max(begin, size - TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""


def how_it_ended(code: int) -> str:
    """The exit code, or the signal where it is negative."""
    return f"exit code {code}" if code >= 0 else _signal(code)


def cause_in(text: str) -> str:
    """The error at the end of a log: our own line or the last traceback's class and
    message, whichever came last; else the last line that tells of a fault, or that is not empty.
    Empty when nothing was logged."""
    lines = plain(text).splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if own := _OWN.fullmatch(lines[index]):
            if index >= len(lines) - NEAR_LINES:
                return _message(own["told"], lines[index + 1 :])
            break
        if lines[index].endswith(_TRACEBACK):
            if cause := _end_of_traceback(lines, index + 1):
                return cause
            break
    filled = [bare for line in reversed(lines) if (bare := _BOX.sub(" ", line).strip())]
    filled = [line for line in filled[:NEAR_LINES] if line not in ("Error", _TRACEBACK)]
    faults = (line for line in filled if _FAULT.search(line))
    return _short(next(faults, filled[0] if filled else ""))


def _end_of_traceback(lines: list[str], begin: int) -> str | None:
    """None: others wrote to the log meanwhile, or much came after it."""
    frame = ""
    for index in range(begin, len(lines)):
        line = lines[index]
        indent = line[: len(line) - len(line.lstrip(_INDENT))]
        if line[len(indent) :].startswith("File "):
            frame = indent[:-2]
        bare = line.removeprefix(frame)
        if bare.startswith(tuple(_INDENT)) or not bare:
            continue
        match = _ERROR.fullmatch(bare)
        if match is None or index < len(lines) - NEAR_LINES:
            return None
        return _message(
            match["told"], [following.removeprefix(frame) for following in lines[index + 1 :]]
        )
    return None


def _message(first: str, following: list[str]) -> str:
    """With the lines that belong to it."""
    rest = itertools.takewhile(lambda line: not _BESIDE.match(line), following[:MESSAGE_LINES])
    return _short(" ".join([first, *rest]))


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), CAUSE_CHARS)
