"""Where errors become typed Temporal failures: the one place that classifies.

A FaultKind is never retried by Temporal, except a full node's: that open goes to another node.
Everything else is retried, for as long as it takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from infra.db.fence import Fenced
from infra.db.sandboxes import CampaignFull
from infra.sandbox.protocol import SandboxLost, SandboxRefused
from mainspring.errors import EngineError, MainspringError
from mainspring.status import FaultKind


class SandboxDiverged(MainspringError):
    """A replayed command did not do what it did the first time."""


class NodeFull(MainspringError):
    """A node was asked to open a sandbox that it does not take."""


ELSEWHERE_AFTER = timedelta(seconds=0.2)
"""Before an open that a full node got is offered again; nodes with room ask at once."""
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
    except NodeFull as full:
        raise ApplicationError(
            str(full),
            type=FaultKind.NODE_FULL,
            next_retry_delay=ELSEWHERE_AFTER,
            category=ApplicationErrorCategory.BENIGN,
        ) from full
    except CampaignFull as full:
        raise ApplicationError(
            str(full),
            type=type(full).__name__,
            next_retry_delay=timedelta(seconds=full.retry_after_s),
            category=ApplicationErrorCategory.BENIGN,
        ) from full
    except MainspringError as error:
        for kind_of_error, fault in _KINDS:
            if isinstance(error, kind_of_error):
                raise ApplicationError(str(error), type=fault, non_retryable=True) from error
        raise
