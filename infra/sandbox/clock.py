"""A clock of a sandbox's own, for tasks whose tests depend on the date.

libfaketime is loaded into every command's programs and shifts what they read as the time by an
offset that is fixed when the sandbox opens. Times of files and clocks that only measure stay the
node's, so that listings of a repository's own files and timeouts are as ever. Programs without a C
library are not reached. Imported by the backends.
"""

import functools
import importlib.util
import math
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from infra.sandbox.protocol import BackendUnavailable

INSIDE = "/run/mainspring/clock.so"
"""Where the library is in a sandbox."""
_INSTALLED = "usr/lib/*/faketime/libfaketime.so.1"


def variables(clock: datetime, now: datetime) -> Mapping[str, str]:
    """That make programs read `clock` at the moment `now`."""
    return {
        "LD_PRELOAD": INSIDE,
        "FAKETIME": f"{math.ceil((clock - now).total_seconds()):+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


@functools.cache
def library() -> Path:
    """Path of this node's libfaketime. Raises BackendUnavailable."""
    paths = sorted(Path("/").glob(_INSTALLED))[:1]
    package = importlib.util.find_spec("libfaketime")
    if package is not None and package.origin is not None:
        paths += sorted(Path(package.origin).parent.rglob("libfaketime.so.1"))[:1]
    for path in paths:
        if _lets_sleep(path):
            return path
    if paths:
        raise BackendUnavailable(
            "a task wants a clock of its own, and under this node's libfaketime "
            f"({paths[0]}) programs cannot sleep",
            remedy="`pip install libfaketime` on every sandbox node: 0.9.10, which Debian has, "
            "fails Python's `time.sleep`",
        )
    raise BackendUnavailable(
        "a task wants a clock of its own, and this node has no libfaketime",
        remedy="install the system's package `faketime`, or `pip install libfaketime`, on every "
        "sandbox node",
    )


def _lets_sleep(library: Path) -> bool:
    """Whether a program can wait for a moment of a clock that only measures: Python does so since
    3.11, and libfaketime 0.9.10 refuses it."""
    program = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.001)"]
    shifted = variables(datetime(2024, 5, 1), datetime(2024, 5, 2))
    ran = subprocess.run(
        program,
        env={**shifted, "LD_PRELOAD": str(library)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return ran.returncode == 0
