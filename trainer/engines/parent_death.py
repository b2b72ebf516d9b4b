"""Ends a process with the one that made it: Megatron's checkpoint writers, which outlive a killed
rank otherwise.

Light on purpose: a process that is spawned with it imports nothing else. Used by `sharded_files`.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """SIGKILL for this process when the thread that made it ends, also by SIGKILL."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ended_with_parent(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`work` in a forked process that ends with its parent, as do those that it forks."""
    end_with_parent()
    os.register_at_fork(after_in_child=end_with_parent)
    return work(*args, **kwargs)
