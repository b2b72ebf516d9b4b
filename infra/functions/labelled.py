"""Processes by the label in their environment: what a function started, and what that started.

Invariant: a process keeps the label unless it was started without its parent's variables; so what
left the function's process group, or outlived its node's process, is found by it. Used at the end
of each function, and when a node starts.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

LABEL = "MAINSPRING_FUNCTION"
PASSES = 20
"""Looks at most: what is killed may have started others before."""
PASS_S = 0.01
_PROC = Path("/proc")


def label_of(owner: str, name: str) -> str:
    """Label of what this process starts as `name`. `owner`: the folder of the node's functions, as
    another stack on this machine may have a node of the same name."""
    return f"{owner}/{os.getpid()}/{name}"


def kill_labelled(label: str) -> int:
    """End every process with this label; how many there were."""
    return _kill(lambda other: other == label)


def kill_left(owner: str) -> int:
    """End what earlier processes of this owner left; how many there were."""
    own_prefix = label_of(owner, "")
    return _kill(lambda label: label.startswith(f"{owner}/") and not label.startswith(own_prefix))


def _kill(is_meant: Callable[[str], bool]) -> int:
    killed: set[int] = set()
    for _ in range(PASSES):
        pids = [pid for pid, label in _labels() if is_meant(label)]
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(PASS_S)
    return len(killed)


def _labels() -> Iterator[tuple[int, str]]:
    """Labels of all processes that this account may look at. Those that have ended have none."""
    prefix = f"{LABEL}=".encode()
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended, or is another account's
        for variable in variables:
            if variable.startswith(prefix):
                yield int(folder.name), variable.removeprefix(prefix).decode(errors="replace")
