"""Processes that tests look at from outside."""

import psutil


def runs(pid: int) -> bool:
    """Not so as a zombie: it has ended, and whether its parent has collected it is chance."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def words(process: psutil.Process) -> list[str]:
    """What it was called with; of one that was forked, the title that it was given."""
    return " ".join(process.cmdline()).split()
