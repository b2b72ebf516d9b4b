"""Where errors become typed Temporal failures: the one place that classifies.

A FaultKind is never retried by Temporal; everything else is, for as long as it takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from infra.db.fence import Fenced
from infra.sandbox.protocol import SandboxLost, SandboxRefused
from mainspring.errors import EngineError, MainspringError
from mainspring.status import FaultKind


class SandboxDiverged(MainspringError):
    """A replayed command did not do what it did the first time."""


_KINDS: tuple[tuple[type[MainspringError], FaultKind], ...] = (
    (Fenced, FaultKind.FENCED),
    (SandboxDiverged, FaultKind.SANDBOX_DIVERGED),
    (SandboxLost, FaultKind.SANDBOX_LOST),
    (SandboxRefused, FaultKind.TASK_INVALID),
    (EngineError, FaultKind.POLICY_REFUSED),
)


@contextmanager
def typed_faults() -> Iterator[None]:
    """Turn the project's errors into ApplicationErrors whose `type` is a FaultKind."""
    try:
        yield
    except MainspringError as error:
        for kind_of_error, fault in _KINDS:
            if isinstance(error, kind_of_error):
                raise ApplicationError(str(error), type=fault, non_retryable=True) from error
        raise
