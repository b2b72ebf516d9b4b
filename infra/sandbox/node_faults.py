"""Whose fault it is that a sandbox could not be made: the node's, which may pass, or the task's.

Invariant: a lack of space, memory, processes or open files is the node's, never the task's: another
attempt, or another node, may do it. Everything else that programs print while they make a sandbox
follows from the task and comes back each time. Imported by the backends and by `session`.
"""

import errno
import re

from infra.sandbox.protocol import SandboxRefused
from mainspring.errors import SandboxError

_ERRNOS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
        *(errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY),
    }
)
"""Errors of the worker's own calls in its own folder."""
_SAID = re.compile(
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|Resource temporarily"
    r" unavailable|Too many open files|Input/output error|Creating new namespace failed",
    re.IGNORECASE,
)
REMEDY = "look at this node's free disk, memory and processes; it will be tried again"


def blamed(message: str, output: str, *, remedy: str = "") -> SandboxError:
    """The error for what a program wrote to `output` while it made a sandbox."""
    if _SAID.search(output):
        return SandboxError(message, remedy=REMEDY)
    return SandboxRefused(message, remedy=remedy)


def blamed_for(message: str, error: OSError, *, remedy: str = "") -> SandboxError:
    """The same for a call of the worker itself."""
    if error.errno in _ERRNOS:
        return SandboxError(message, remedy=REMEDY)
    return SandboxRefused(message, remedy=remedy)
