"""Processes that stand still (SIGSTOP, a frozen terminal): found by their state, ended, told.

Invariants: a process that stands still for FROZEN_S is a dead one and is ended, since what it holds
others wait for; it is started again as one that died. Time is counted in looks, so that a look
which itself stood still ends nothing. A process that a debugger holds is left alone, and so is all
that runs in sandboxes: commands have time limits of their own. Used by what keeps processes.
"""

import os
import signal
from collections.abc import Iterable, Iterator
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
        for name, process in _standing(watched):
            seen[process] = self._num_looks.get(process, 0) + 1
            # Not another one that has got its number since.
            if seen[process] * LOOK_S > FROZEN_S and process.is_running():
                os.kill(process.pid, signal.SIGKILL)
                ended.append(FrozenProcess(name, process.pid))
        self._num_looks = seen
        return ended


def _standing(watched: Iterable[KeptProcess]) -> Iterator[tuple[str, psutil.Process]]:
    """Those that stand still, each with the name of what it belongs to. One pass over the machine's
    processes, of which sandboxes make hundreds."""
    by_pid = {process.pid: process for process in psutil.process_iter(["ppid", "status"])}
    children: dict[int, list[int]] = {}
    for process in by_pid.values():
        children.setdefault(process.info["ppid"], []).append(process.pid)
    for kept_process in watched:
        family = [kept_process.pid]  # grows below while it is gone through
        for pid in family if kept_process.with_children else ():
            family += children.get(pid, ())
        for pid in family:
            process = by_pid.get(pid)
            if process is not None and process.info["status"] == psutil.STATUS_STOPPED:
                yield kept_process.name, process
