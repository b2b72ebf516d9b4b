"""A background process that outlives the command that started it, found again by later ones.

Invariants: a process is recognised by pid and start time together, so a recycled pid is never
mistaken for it; its output goes to a file, never to a pipe nobody reads; stopping ends the whole
process group.
"""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from mainspring.errors import ServiceError

STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
LOG_LINES = 12
START_TOLERANCE_S = 1.0
"""psutil derives start times from the boot time, which wanders by a fraction of a second."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a process runs as, when not as the caller."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Daemon:
    """One named background process of a home folder."""

    name: str
    home: Path

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        return self.home / "run" / f"{self.name}.json"

    def start(
        self,
        command: list[str],
        *,
        account: Account | None = None,
        environment: dict[str, str] | None = None,
    ) -> int:
        """Start it detached; its pid. Raises ServiceError when it cannot even be started."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd="/",
                    env=environment,
                    user=account.uid if account else None,
                    group=account.gid if account else None,
                    extra_groups=[] if account else None,
                )
            except OSError as error:
                raise ServiceError(f"{self.name}: {command[0]} cannot be run: {error}") from None
        started = psutil.Process(process.pid).create_time()
        self.pid_file.write_text(json.dumps({"pid": process.pid, "started": started}))
        return process.pid

    def pid(self) -> int | None:
        """Its pid while it runs."""
        try:
            known = json.loads(self.pid_file.read_text())
            process = psutil.Process(known["pid"])
            same = abs(process.create_time() - known["started"]) < START_TOLERANCE_S
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
            return None
        return process.pid if same and process.status() != psutil.STATUS_ZOMBIE else None

    def stop(self, first: signal.Signals = signal.SIGTERM) -> bool:
        """End its process group: `first`, then SIGKILL after the deadline. False if it was not
        running."""
        pid = self.pid()
        if pid is None:
            self.pid_file.unlink(missing_ok=True)
            return False
        _signal_group(pid, first)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.pid() is not None:
            if time.monotonic() > deadline:
                _signal_group(pid, signal.SIGKILL)
            _reap(pid)
            time.sleep(POLL_S)
        self.pid_file.unlink(missing_ok=True)
        return True

    def log_tail(self) -> str:
        """The end of its log, for error messages."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-LOG_LINES:]) or "(the log is empty)"


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _reap(pid: int) -> None:
    """Collect it if it is our own child, so that it does not stay as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
