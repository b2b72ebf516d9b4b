"""The process that keeps one campaign's processes on this machine, in a terminal or behind it.

Invariants: at most one process supervises a campaign of a home folder (a lock that dies with its
holder); one that was started in the background outlives the command and its terminal, and writes to
a log. Stopping it stops the campaign's local processes, not the campaign: it waits in Temporal.

<home>/run/train-<campaign>.lock    held by the supervisor; its process id, and in the second line
                                    the folders that the run's own modules are in
<home>/logs/train-<campaign>.log    what it prints in the background
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO

from cli.operations.machine.process_ends import LifeBegun
from infra.stack import home as homes
from mainspring.config.registry import FOLDERS
from mainspring.errors import ServiceError, UsageError, WorkFailed
from mainspring.words.wait import Wait, WaitKind

STOP_TIMEOUT_S = 60.0
"""Longer than the processes it stops are given."""
POLL_S = 0.1
TRIES = 10


@dataclass(frozen=True, slots=True)
class Supervisor:
    home: Path
    campaign: str

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"train-{self.campaign}.log"

    @property
    def _lock(self) -> Path:
        return self.home / "run" / f"train-{self.campaign}.lock"

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Be the supervisor. Raises UsageError when another process is."""
        homes.make(self.home)
        with self._lock.open("a+") as file:
            if not _locked(file):
                raise UsageError(
                    f"process {self._written()} trains campaign {self.campaign} already",
                    remedy=f"follow it: mainspring campaign watch {self.campaign}",
                )
            _note(file)
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The same where several processes may bring workers for one run: the first is noted."""
        homes.make(self.home)
        with self._lock.open("a+") as file:
            if _locked(file, tries=1):
                _note(file)
            yield

    def imports(self) -> list[str]:
        """Folders in which the run's own modules were found when a process last was here."""
        try:
            _, _, folders = self._lock.read_text().partition("\n")
        except FileNotFoundError:
            return []
        return [folder for folder in folders.split(os.pathsep) if folder]

    def was_here(self) -> bool:
        """Whether a process of this home was the supervisor at any time."""
        return self._lock.exists()

    def pid(self) -> int | None:
        """The supervisor's process, while there is one."""
        try:
            with self._lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return self._written()
        return None

    def start(self, command: Sequence[str]) -> int:
        """Run `command` in the background until it holds the lock; its pid. Raises WorkFailed with
        its cause and its log when it ends before."""
        homes.make(self.home)
        life = LifeBegun.now(self.log)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while self.pid() != process.pid:
            if process.poll() is not None:
                end = life.ended("the background process", process.returncode)
                raise WorkFailed(
                    f"campaign {self.campaign}: {end}",
                    remedy="fix what the log names, then repeat the command",
                )
            time.sleep(POLL_S)
        return process.pid

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """End it and its processes; False when none runs. Raises ServiceError."""
        pid = self.pid()
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
        except PermissionError:
            raise ServiceError(
                f"process {pid} trains campaign {self.campaign} and belongs to another user",
                remedy="stop it as that user",
            ) from None
        deadline = time.monotonic() + timeout_s
        while self.pid() == pid:
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"process {pid} trains campaign {self.campaign} and has not ended within "
                    f"{timeout_s:.0f} s",
                    remedy=f"see {self.log}; `kill -9 {pid}` ends it and its processes",
                )
            time.sleep(POLL_S)
        return True

    def _written(self) -> int:
        # Between taking the lock and writing its pid a holder leaves the file empty for a moment.
        for _ in range(TRIES):
            text = self._lock.read_text()
            if text:
                return int(text.split()[0])
            time.sleep(POLL_S)
        raise ServiceError(f"{self._lock} is held and names no process")


def waited_here(waits: Sequence[Wait], began: datetime) -> list[Wait]:
    """Waits of a run whose workers came at `began`: before, nothing moved because nothing ran."""
    return [
        wait if wait.since is None else replace(wait, since=max(wait.since, began))
        for wait in waits
    ]


def _note(file: IO[str]) -> None:
    file.truncate(0)
    file.write(f"{os.getpid()}\n{os.environ.get(FOLDERS, '')}")
    file.flush()


def supervised(home: Path) -> list[tuple[str, int]]:
    """The runs of a home whose workers a process here brings, and that process."""
    names = [path.stem.removeprefix("train-") for path in (home / "run").glob("train-*.lock")]
    pids = [(name, Supervisor(home, name).pid()) for name in sorted(names)]
    return [(name, pid) for name, pid in pids if pid is not None]


def starting(waits: Sequence[Wait], home: Path, pid: int | None, again: str = "") -> list[Wait]:
    """Waits for workers and engines, told as those of a run whose workers process `pid` brings:
    they come. None: no process does. `again`: the command that brought them before, and does so
    again."""
    if pid is None and again:
        return [
            replace(wait, remedy=f"run `{again}`: it brings all workers of this run")
            if "`mainspring worker" in wait.remedy
            else wait
            for wait in waits
        ]
    if pid is None:
        return list(waits)
    return [_starting(wait, home, pid) for wait in waits]


def _starting(wait: Wait, home: Path, pid: int) -> Wait:
    remedy = f"process {pid} is starting it: see {home / 'logs'}"
    if "`mainspring worker" in wait.remedy:
        what = wait.what.replace("waiting for a", "starting a", 1)
        return replace(wait, what=what, remedy=remedy, kind=WaitKind.STARTING)
    ports = _ports_served_by(pid) if wait.engines else ()
    if kept := [url for url in wait.engines if _port(url) in ports]:
        what = f"starting engine {', '.join(kept)}"
        return replace(wait, what=what, remedy=remedy, kind=WaitKind.STARTING)
    return wait


def _port(url: str) -> str:
    return url.rpartition(":")[2].rstrip("/")


def _ports_served_by(pid: int) -> set[str]:
    """Ports of the engines among the processes that `pid` keeps, whether they answer yet or not."""
    import psutil  # screens seldom have an engine that does not answer

    ports = set[str]()
    with suppress(psutil.Error):  # ended since: the next look tells
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                words = child.cmdline()
                if "serve" in words and "--port" in words[:-1]:
                    ports.add(words[words.index("--port") + 1])
    return ports


def _locked(file: IO[str], tries: int = TRIES) -> bool:
    for _ in range(tries):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            # It may be `pid` of another process that looks, which holds the lock for a moment.
            time.sleep(POLL_S)
    return False
