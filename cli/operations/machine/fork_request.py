"""Requests of a fleet to its fork server, and the first acts of each process of a fleet.

Pure but for `die_with_parent`. Imported by both sides: `cli.operations.machine.forks` and the
program `cli.fork_server`, which is started and never imported.
"""

import ctypes
import json
import signal
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One line of JSON. The answer to it has `number` and `pid`; when the member has ended, another
    line has `pid` and `code`, as `subprocess` has it."""

    number: int
    arguments: list[str]
    """After `python -m mainspring`."""
    environment: dict[str, str]
    log: str

    def line(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields).encode() + b"\n"


def die_with_parent() -> None:
    """SIGTERM for this process when its parent ends: SIGKILL of a fleet must reach its members,
    which have sessions of their own, so that Ctrl-C reaches only the fleet."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
