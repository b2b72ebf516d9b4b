"""An error in words for people: its class, its message, the file that has the rest.

Invariants: no traceback and no escape code is in such a text; what is too long loses its middle,
because a text begins with what failed and ends with why. Pure but for `memory_kills` and
`own_log`, which read /proc. Used wherever an error leaves its process: ranks, workers, engines,
functions, and the screens that show what they told.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from mainspring.words.plain_text import plain

CAUSE_CHARS = 600
"""Temporal replaces a pending activity's failure by one sentence of its own above 2 KB."""
TAIL_SHARE = 0.6
"""Share of the end in what is kept of a long text: the end has the reason."""
CUT = " ... "

_OUT_OF_MEMORY = re.compile(
    r"out of memory|can.?t allocate memory|cannot allocate memory|not enough memory|"
    r"bad_alloc|_ALLOC_FAILED|unable to allocate \d",
    re.IGNORECASE,
)
_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|gloo|nccl|unhandled system error|"
    r"timed out waiting|store|socket",
    re.IGNORECASE,
)


def shortened(text: str, chars: int) -> str:
    """At most `chars` characters: the beginning and the end of a longer text."""
    if len(text) <= chars:
        return text
    room = chars - len(CUT)
    tail = int(room * TAIL_SHARE)
    return f"{text[: room - tail].rstrip()}{CUT}{text[len(text) - tail :].lstrip()}"


def cause_of(error: BaseException, chars: int = CAUSE_CHARS) -> str:
    """Class and message in one line, without the traceback that some libraries (Ray, concurrent
    futures, exception groups) put into a message."""
    error = innermost(error)
    name = type(error).__name__
    message = " ".join(_without_traceback(plain(str(error))).split())
    return shortened(f"{name}: {message}" if message else name, chars)


def innermost(error: BaseException) -> BaseException:
    """The one error that a group or a wrapper of another process stands for."""
    while True:
        if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        # Ray's RayTaskError: its own text is the remote traceback.
        elif isinstance(inner := getattr(error, "cause", None), BaseException):
            error = inner
        else:
            return error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the host or a GPU has no memory left, however the library words it."""
    return any(_tells_no_memory(link) for link in _chain(error))


def is_of_a_peer(error: BaseException) -> bool:
    """Whether this may be the effect of another process's end: a collective that lost its peer."""
    error = innermost(error)
    is_wire = isinstance(error, ConnectionError | TimeoutError | EOFError)
    is_backend = type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError")
    return is_wire or is_backend or bool(_PEER.search(str(error)))


def memory_kills() -> int | None:
    """Processes that the kernel has ended for lack of memory: in this process's control group where
    there is one, else on the machine. None: the kernel does not tell. It only grows."""
    for source in (*_group_files(), Path("/proc/vmstat")):
        try:
            match = re.search(r"^oom_kill (\d+)$", source.read_text(), re.MULTILINE)
        except OSError:
            continue
        if match:
            return int(match[1])
    return None


def own_log() -> Path | None:
    """The file that this process's standard error goes to; None for a terminal or a pipe."""
    try:
        if not stat.S_ISREG(os.fstat(2).st_mode):
            return None
        log = Path(os.readlink("/proc/self/fd/2"))
        return log if log.exists() else None  # it may have been moved away
    except OSError:
        return None


def _group_files() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield Path(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            yield Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        inner = getattr(following, "cause", None)
        following = inner if isinstance(inner, BaseException) else following.__cause__


def _tells_no_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))


def _without_traceback(text: str) -> str:
    """The message without its traceback: its last line that is no line of code."""
    if "Traceback (most recent call last)" not in text and "^^^^" not in text:
        return text
    lines = [line for line in text.splitlines() if not line.startswith((" ", "\t"))]
    filled = [line for line in lines if line.strip("\"'^~ ")]
    return filled[-1] if filled else text
