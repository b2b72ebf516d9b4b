"""When a process began: what tells it from a later one of its number.

By the machine's boot and the kernel's ticks since then. The time of day is no part of it: when a
clock is set right, all starts that are told by it move (psutil's `create_time`), and what lives
would be taken for another one. Imported by the rooms of infra.
"""

import os
from pathlib import Path

import psutil

SLACK_S = 2.0
"""The boot time, by which older versions told a start, wanders by a fraction of a second."""
_START = 19
"""Field of /proc/PID/stat after the name's closing bracket."""


def boot_id() -> str:
    """Names this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_of(pid: int) -> str:
    """Start of a process that lives, or has not been collected. Raises psutil.NoSuchProcess."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # A name may contain brackets and spaces.
    return f"{boot_id()}+{int(stat.rpartition(b')')[2].split()[_START])}"


def is_same(pid: int, start: str | float) -> bool:
    """Whether the process with this number is the one that began at `start`: as `start_of` told it,
    or as an older version did, in seconds of the time of day. Raises psutil.NoSuchProcess."""
    if isinstance(start, str) and "+" in start:
        return start_of(pid) == start
    return abs(psutil.Process(pid).create_time() - float(start)) < SLACK_S


def this_process() -> str:
    """Names this process beyond doubt, on whatever host and in whatever container it runs."""
    return f"{pid_space()}/{os.getpid()}/{start_of(os.getpid())}"


def has_ended(process: str) -> bool:
    """Whether a process of this pid namespace ended; False for others, which cannot be seen."""
    where, pid, start = process.rsplit("/", 2)
    if where != pid_space():
        return False
    try:
        running = psutil.Process(int(pid))
        alive = running.is_running() and running.status() != psutil.STATUS_ZOMBIE
        return not alive or not is_same(running.pid, start)
    except psutil.NoSuchProcess:
        return True


def pid_space() -> str:
    """Names where this process sees others: the host's boot, and the pid namespace in it."""
    return f"{boot_id()}/{os.readlink('/proc/self/ns/pid')}"
