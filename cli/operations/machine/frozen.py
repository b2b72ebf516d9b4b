"""Processes that stand still (SIGSTOP, a frozen terminal): found by their state, ended, told.

Invariants: a process that stands still for FROZEN_S is a dead one and is ended, since what it holds
others wait for; it is started again as one that died. Time is counted in looks, so that a look
which itself stood still ends nothing. A process that a debugger holds is left alone, and so is all
that runs in sandboxes: commands have time limits of their own. Used by what keeps processes.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from mainspring.protocol.timeouts import LEASE_SILENT_S

FROZEN_S = LEASE_SILENT_S
"""As long as a lease is kept for a process that is silent."""
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class KeptProcess:
    name: str
    pid: int
    with_children: bool
    """Whether its children are ours too: ranks, Ray's processes, Postgres's."""


@dataclass(frozen=True, slots=True)
class FrozenProcess:
    """A process that stood still and was ended."""

    name: str
    """Member or service that it belongs to."""
    pid: int

    def __str__(self) -> str:
        return f"{self.name}: process {self.pid} stood still for {FROZEN_S:.0f} s and was ended"


class FrozenWatch:
    """Looks every LOOK_S at the same kind of processes."""

    def __init__(self) -> None:
        self._num_looks: dict[psutil.Process, int] = {}
        """Looks in a row at which it stood still."""

    def end_frozen(self, watched: Iterable[KeptProcess]) -> list[FrozenProcess]:
        """Look once; end with SIGKILL those that have stood still for FROZEN_S."""
        seen: dict[psutil.Process, int] = {}
        ended: list[FrozenProcess] = []
        for kept_process in watched:
            for process in _standing(kept_process):
                seen[process] = self._num_looks.get(process, 0) + 1
                if seen[process] * LOOK_S > FROZEN_S:
                    os.kill(process.pid, signal.SIGKILL)
                    ended.append(FrozenProcess(kept_process.name, process.pid))
        self._num_looks = seen
        return ended


def _standing(watched: KeptProcess) -> Iterable[psutil.Process]:
    try:
        process = psutil.Process(watched.pid)
        family = [process, *(process.children(recursive=True) if watched.with_children else ())]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            if member.status() == psutil.STATUS_STOPPED:
                yield member
        except psutil.NoSuchProcess:
            continue
