"""The Ray cluster under the ranks: a local one of this process, or one at an address.

Invariants: a local cluster's processes do not outlive this one (the kernel ends its servers with
the thread that started them, `shutdown` ends the rest, and the next trainer on the machine what a
SIGKILL left); a cluster whose servers ended is reported and never waited for, because Ray's own
calls would wait without end.
"""

import contextlib
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import psutil
import ray
import structlog
from ray.exceptions import RayError

from mainspring.training.training_faults import DeviceMissing, TrainerLost

LOCAL = "local"
"""Ray's word for a cluster of its own inside this process tree."""
SOCKET_ROOT = "/tmp"
"""Ray puts Unix sockets there, whose paths the kernel cuts at 107 bytes: TMPDIR may be too long."""
ANSWER_S = 30.0
"""A cluster at an address gets so long to take a connection: Ray itself would retry for minutes,
and print alone."""
ANSWER_LOOK_S = 1.0
REASON_CHARS = 400
SHUTDOWN_TIMEOUT_S = 1.0
RAY_SHUTDOWN_TIMEOUT_S = 20.0
"""For Ray's own shutdown; then its processes are killed."""
TEMP_PREFIX = "ms-ray-"
OBJECT_STORE_BYTES = 256 << 20
"""Batches travel as files; what is checked of an evaluation is some tens of megabytes. Ray would
take 30 % of the memory."""
SERVERS = ("raylet", "gcs_server")
"""Without one of these no call to a rank returns."""
_WARNING = re.compile(r"\[[^\]]* [WEF] [^\]]*\] \S+: (.*)")
"""A line of Ray's logs: time, level and process in brackets, then the place in its code."""

log = structlog.get_logger()


class RayCluster:
    def __init__(self, address: str) -> None:
        self.address = address
        self._ray_thread: ThreadPoolExecutor | None = None
        self._temp_dir: Path | None = None
        self._plant: list[psutil.Process] = []
        self._servers: list[tuple[str, psutil.Process]] = []

    def connect(self, campaign: str) -> None:
        """Raises TrainerLost when nothing answers at the address, and DeviceMissing when what
        answers there refuses this process."""
        self.check()
        if ray.is_initialized():
            return
        options: dict[str, Any] = {}
        if self.address != LOCAL:
            _reach(self.address, campaign)
        else:
            clear_leftovers()
            prefix = f"{TEMP_PREFIX}{os.getpid()}-"
            self._temp_dir = Path(tempfile.mkdtemp(prefix=prefix, dir=SOCKET_ROOT))
            options = {
                "include_dashboard": False,
                # Ray starts an idle process for each CPU that it counts; ranks ask for none.
                "num_cpus": 0,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(self._temp_dir),
            }
        # The kernel kills a local cluster with the thread that started it, not with the process;
        # the caller's thread may end with its call.
        self._ray_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
        connect = self._ray_thread.submit(
            ray.init,
            address=self.address,
            namespace=f"mainspring-{campaign}",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
        try:
            connect.result()
        except (RayError, ConnectionError, RuntimeError, ValueError) as error:
            self._ray_thread.shutdown(wait=False)
            self._ray_thread = None
            if self.address == LOCAL:
                raise
            reason = str(error).strip().splitlines()[-1][:REASON_CHARS]
            raise DeviceMissing(
                f"campaign {campaign}: the Ray cluster at {self.address} (MAINSPRING_RAY_ADDRESS) "
                f"refused the trainer: {reason}",
                remedy="give the trainer the cluster's token (RAY_AUTH_MODE, RAY_AUTH_TOKEN) and "
                "its versions of Ray and Python, then start the campaign again",
            ) from error
        if self._temp_dir is not None:
            self._plant = _children_naming(self._temp_dir)
            self._servers = [(p.name(), p) for p in self._plant if p.name() in SERVERS]

    def own(self, pids: list[int]) -> None:
        """Processes of ranks, which end with a local cluster."""
        if self._temp_dir is not None:
            for pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._plant.append(psutil.Process(pid))

    def end(self, pids: list[int]) -> None:
        """Kill ranks that do not answer, where they are processes of this machine."""
        for process in self._plant:
            if process.pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def check(self) -> None:
        """Raises TrainerLost when a server of a local cluster has ended. Cheap, from any thread."""
        for name, process in self._servers:
            if not _is_alive(process):
                raise TrainerLost(
                    f"Ray's {name} (pid {process.pid}) ended: no rank of the trainer answers",
                    remedy="this trainer's process ends too; its supervisor starts the next one, "
                    "which resumes from the newest checkpoint",
                )

    @property
    def is_lost(self) -> bool:
        return not all(_is_alive(process) for _, process in self._servers)

    def shutdown(self) -> None:
        """Stop Ray if this process started it; all its processes are gone afterwards."""
        plant = self._plant
        if self._temp_dir is not None:
            plant = [*plant, *_children_naming(self._temp_dir), *_naming(self._temp_dir)]
        if self._ray_thread is not None:
            if not self.is_lost:
                with contextlib.suppress(FutureTimeout):
                    self._ray_thread.submit(ray.shutdown).result(RAY_SHUTDOWN_TIMEOUT_S)
            self._ray_thread.shutdown(wait=False)
            self._ray_thread = None
        # Ray's agents notice the end of their raylet only a minute later.
        for process in psutil.wait_procs(set(plant), timeout=SHUTDOWN_TIMEOUT_S)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._plant, self._servers = [], []
        if self._temp_dir is not None:
            shutil.rmtree(self._temp_dir, ignore_errors=True)
            self._temp_dir = None


def _reach(address: str, campaign: str) -> None:
    """Return once something takes a connection at host:port. Raises TrainerLost after ANSWER_S."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return  # a word of Ray's, such as "auto"
    until = time.monotonic() + ANSWER_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_LOOK_S).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise TrainerLost(
                    f"campaign {campaign}: no Ray cluster answers at {address} "
                    f"(MAINSPRING_RAY_ADDRESS) within {ANSWER_S:.0f} s: {error}",
                    remedy="start Ray there (`ray start --head`), or correct the address and start "
                    "the trainer again",
                ) from None
        time.sleep(ANSWER_LOOK_S)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _has_ended(pid: int) -> bool:
    try:
        return not _is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def _children_naming(temp_dir: Path) -> list[psutil.Process]:
    """The local cluster's processes: children that name its directory, and theirs."""
    processes: list[psutil.Process] = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile, or a zombie
            if any(str(temp_dir) in argument for argument in child.cmdline()):
                processes += [child, *child.children(recursive=True)]
    return processes


def _naming(temp_dir: Path) -> list[psutil.Process]:
    """Processes anywhere that name the directory: those of a dead raylet have another parent."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            arguments = process.cmdline()
            if any(f"{temp_dir}/" in f"{argument}/" for argument in arguments if "ray" in argument):
                processes.append(process)
    return processes


def clear_leftovers() -> None:
    """`end_leftovers`, with Ray's own reasons in the log."""
    for pid, reason in end_leftovers().items():
        log.warning("Ray ended the trainer before this one", pid=pid, reason=reason)


def end_leftovers() -> dict[int, str]:
    """End the processes and delete the temporary directories of trainers that were killed. By
    process id, what Ray wrote when it ended one itself.

    It does so without a word when a call meets a dead raylet before `check` does."""
    reasons: dict[int, str] = {}
    for path in Path(SOCKET_ROOT).glob(f"{TEMP_PREFIX}*-*"):
        name = path.name.removeprefix(TEMP_PREFIX).split("-")[0]
        if name.isdigit() and _has_ended(pid := int(name)):
            for process in _naming(path):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if reason := _last_words(path, pid):
                reasons[pid] = reason
            shutil.rmtree(path, ignore_errors=True)
    return reasons


def _last_words(temp_dir: Path, pid: int) -> str:
    """The last line of Ray's log of this driver, when that is a warning or an error."""
    for log_file in temp_dir.glob(f"session_latest/logs/python-core-driver-*_{pid}.log"):
        lines = log_file.read_text(errors="replace").splitlines()
        if lines and (match := _WARNING.match(lines[-1])):
            return match[1]
    return ""
