"""A background process that outlives the command that started it, found again by later ones.

Invariants: a process is recognised by pid and start time together, so a recycled pid is never
mistaken for it; its output goes to a file, never to a pipe without a reader; it sees nothing of the
caller's environment but the search path; stopping ends the whole process group. What a killed
command left without a pid file is found by its working folder before another one starts in it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from infra.process_start import is_same, start_of
from infra.stack.home import write_private
from infra.stack.ports import LOOPBACK
from mainspring.errors import ServiceError

STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
"""Only a process stuck in the kernel outlives SIGKILL for longer."""
POLL_S = 0.05
LOG_LINES = 12
_STARTED = "--- started "


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a process runs as, when not as the caller."""

    name: str
    uid: int
    gid: int

    @property
    def arguments(self) -> dict[str, Any]:
        """For subprocess: this account and none of the caller's groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def environment() -> dict[str, str]:
    """For the services: nothing of the caller's, whose API keys are not theirs to hold."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class Daemon:
    """One named background process of a home folder, working in `folder`."""

    name: str
    home: Path
    folder: Path

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
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Start it detached; its pid. Raises ServiceError when it cannot even be started."""
        self._kill_strays()
        with self.log.open("ab") as log:
            log.write(f"{_STARTED}{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())
            log.flush()
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd=self.folder,
                    env={**environment(), **variables},
                    **(account.arguments if account else {}),
                )
            except OSError as error:
                raise ServiceError(f"{self.name}: {command[0]} cannot be run: {error}") from None
        record = {"pid": process.pid, "started": start_of(process.pid)}
        write_private(self.pid_file, json.dumps(record))
        return process.pid

    def pid(self) -> int | None:
        """Its pid while it runs."""
        try:
            record = json.loads(self.pid_file.read_text())
            process = psutil.Process(record["pid"])
            same = is_same(process.pid, record["started"])
            running = process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, ValueError, KeyError, psutil.NoSuchProcess):
            return None
        return process.pid if same and running else None

    def listens_on(self, port: int) -> bool:
        """Whether it, and not a stranger, answers at `port`."""
        pid = self.pid()
        try:
            sockets = psutil.Process(pid).net_connections("tcp4") if pid else []
        except psutil.NoSuchProcess:
            return False
        return any(s.status == psutil.CONN_LISTEN and s.laddr == (LOOPBACK, port) for s in sockets)

    def stop(
        self, first: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S
    ) -> bool:
        """End its process group: `first`, then SIGKILL after the deadline; and its strays. False if
        nothing was running. Raises ServiceError when it may not or cannot be ended."""
        was_running = False
        for number, patience_s in ((first, timeout_s), (signal.SIGKILL, KILL_TIMEOUT_S)):
            deadline = time.monotonic() + patience_s
            if (pid := self.pid()) is not None:
                was_running = True
                self._signal(pid, number)
            while pid is not None and self.pid() is not None and time.monotonic() < deadline:
                _reap(pid)
                time.sleep(POLL_S)
            if pid is not None:
                _reap(pid)  # it may have become a zombie since the last look
        if (pid := self.pid()) is not None:
            raise ServiceError(f"{self.name}: process {pid} outlives SIGKILL; see the kernel's log")
        self.pid_file.unlink(missing_ok=True)
        return self._kill_strays() or was_running

    def log_tail(self) -> str:
        """The end of what it printed since its last start, for error messages."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no log)"
        lines = text.rpartition(_STARTED)[2].splitlines()[1:]
        return "\n".join(lines[-LOG_LINES:]) or "(it printed nothing)"

    def _signal(self, pid: int, number: signal.Signals) -> None:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            owner = psutil.Process(pid).username()
            raise ServiceError(
                f"{self.name}: process {pid} belongs to {owner} and may not be stopped",
                remedy="run this as the user that ran `mainspring up`",
            ) from None

    def _kill_strays(self) -> bool:
        """Two servers on one folder destroy it. All that is ours survives SIGKILL."""
        strays = [process for process in psutil.process_iter() if self._is_stray(process)]
        for process in strays:
            process.kill()
        psutil.wait_procs(strays, timeout=KILL_TIMEOUT_S)
        return bool(strays)

    def _is_stray(self, process: psutil.Process) -> bool:
        """Whether this service runs in this very folder: a server whose starter was killed before
        it could write the pid file, or a child of a killed Postgres."""
        try:
            if process.name() != self.name:
                return False
            return os.path.samestat(self.folder.stat(), os.stat(f"/proc/{process.pid}/cwd"))
        except PermissionError:
            # Root in a container may end other users' processes, not see where they work.
            return os.geteuid() == 0 and str(self.folder) in process.cmdline()
        except (psutil.NoSuchProcess, FileNotFoundError):
            return False


def _reap(pid: int) -> None:
    """Collect it if it is our own child, so that it does not stay as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
