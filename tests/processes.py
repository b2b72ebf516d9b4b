"""Processes that tests look at from outside."""

import contextlib
import socket
from collections.abc import Callable

import psutil


def runs(pid: int) -> bool:
    """Not so as a zombie: it has ended, and whether its parent has collected it is chance."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def running(is_wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Those that it is true of; the ones that end while it looks, and zombies, are left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if is_wanted(process) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def with_children(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Each, followed by everything that it started and that has not ended."""
    found = []
    for process in processes:
        found.append(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def words(process: psutil.Process) -> list[str]:
    """What it was called with; of one that was forked, the title that it was given."""
    return " ".join(process.cmdline()).split()


def free_address() -> str:
    """Of this machine; nothing listens there at this moment."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listening.getsockname()[1]}"
