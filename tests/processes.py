"""Processes that tests look at from outside."""

import psutil


def runs(pid: int) -> bool:
    """Not so as a zombie: it has ended, and whether its parent has collected it is chance."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
