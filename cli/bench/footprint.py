"""Use of one machine by its processes: memory, processor time, open files, folders, control groups
and bytes on disk.

Owns how each is measured. Memory is resident memory. A process of ours or Temporal's is read with
its peak as the kernel keeps it, so that no peak falls between two looks; Postgres' processes share
most of theirs, which is counted once, and its peak is that of the looks. Linux only, as all of the
embedded stack. Imported by the bench of scale.
"""

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from infra.sandbox.bubblewrap import cgroup
from infra.stack.postgres_server import Postgres
from infra.stack.temporal_server import Temporal
from mainspring.errors import WorkFailed

MIB = 1 << 20
POSTGRES = "postgres"
TEMPORAL = "temporal"
LOG_LINES = 12
FOLDERS = (".", "sandboxes", "functions", "logs", "reports")
"""Folders of a home whose entries are counted."""
N = TypeVar("N", int, float)
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


@dataclass(slots=True)
class Footprint:
    """Use by named processes, and by the stack of one home folder."""

    home: Path
    workers: Mapping[str, int]
    """Process ids by name: a role, and for all but its first process "-" and a number. The
    processes of a role are counted together."""
    _postgres_peak_mib: float = field(default=0.0, init=False)

    def memory_mib(self) -> dict[str, float]:
        """Now."""
        now = self._sums(lambda process: process.memory_info().rss / MIB)
        now[POSTGRES] = self._postgres_mib()
        self._postgres_peak_mib = max(self._postgres_peak_mib, now[POSTGRES])
        return now

    def peak_mib(self) -> dict[str, float]:
        """Since each process began; Postgres': of all calls of `memory_mib`."""
        return {**self._sums(_peak_mib), POSTGRES: self._postgres_peak_mib}

    def cpu_s(self) -> dict[str, float]:
        """Since each process began, ended children included."""
        return {**self._sums(_cpu_s), POSTGRES: sum(map(_cpu_s, self._postgres()))}

    def open_files(self) -> dict[str, int]:
        """Descriptors; Postgres': its processes, as those of another user's cannot be listed."""
        counts = self._sums(lambda process: process.num_fds())
        return {**counts, POSTGRES: len(self._postgres())}

    def left(self) -> dict[str, int]:
        """Folders below the home, temporary entries of the machine, control groups of sandboxes,
        and processes of all, now."""
        temporary = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")}
        groups = (each.directory.glob(f"{cgroup.PREFIX}*") for each in cgroup.available().places)
        return {
            "folders": sum(1 for at in FOLDERS for _ in (self.home / at).glob("*")),
            "temporary": sum(1 for at in temporary if at.is_dir() for _ in at.iterdir()),
            "control_groups": sum(1 for group in groups for _ in group),
            "processes": len(psutil.pids()),
        }

    def temporal_bytes(self) -> int:
        """Size of its database and the log before it."""
        return sum(file.stat().st_size for file in self.home.glob("temporal.db*"))

    def _sums(self, figure: Callable[[psutil.Process], N]) -> dict[str, N]:
        """All but Postgres, by role. Raises WorkFailed when one has ended."""
        pids = {**self.workers, TEMPORAL: Temporal(self.home).daemon.pid()}
        sums: dict[str, N] = {}
        for name, pid in pids.items():
            of_one = figure(self._running(name, pid))
            role = name.partition("-")[0]
            sums[role] = sums[role] + of_one if role in sums else of_one
        return sums

    def _postgres(self) -> list[psutil.Process]:
        first = self._running(POSTGRES, Postgres(self.home).daemon.pid())
        return [first, *first.children(recursive=True)]

    def _running(self, name: str, pid: int | None) -> psutil.Process:
        try:
            process = psutil.Process(pid) if pid is not None else None
            if process is not None and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            pass  # as a zombie: it has ended
        log = self.home / "logs" / f"{name}.log"
        end = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
        raise WorkFailed(
            "\n".join([f"{name} ended while it was measured; the end of its log:", *end]),
            remedy="fix what the log names, or measure fewer rollouts at once",
        )

    def _postgres_mib(self) -> float:
        infos = list(filter(None, map(_memory, self._postgres())))
        own = sum(info.rss - info.shared for info in infos)
        return (own + max(info.shared for info in infos)) / MIB


def _memory(process: psutil.Process) -> Any:
    """None: a connection's process, which has ended since it was listed."""
    try:
        return process.memory_info()
    except psutil.NoSuchProcess:
        return None


def _cpu_s(process: psutil.Process) -> float:
    try:
        return sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0  # its parent has its time now


def _peak_mib(process: psutil.Process) -> float:
    match = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
    assert match is not None, "Linux has it unless the process has ended"
    return int(match[1]) / 1024
