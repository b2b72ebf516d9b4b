"""A workflow's waits, in words that a person can act on.

Invariant: every wait has a name and an owner, or looks again after a while; the newest open one is
shown in Temporal's UI and answers the `progress` query.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from temporalio import workflow


@dataclass(frozen=True, slots=True)
class WorkflowWait:
    what: str
    since: float
    """In unix seconds."""
    queue: str | None = None
    """The task queue whose workers it is up to; None: a person."""
    until: float | None = None
    """When an attempt that began with the wait is given up and made again."""


class Waits:
    def __init__(self) -> None:
        self._open: list[WorkflowWait] = []

    @property
    def newest(self) -> WorkflowWait | None:
        return self._open[-1] if self._open else None

    @contextmanager
    def on(
        self, what: str, *, queue: str | None = None, timeout_s: float | None = None, far: str = ""
    ) -> Iterator[None]:
        """Wait for `what` in this block; `far` is how far the workflow is."""
        now = workflow.time()
        wait = WorkflowWait(what, now, queue, None if timeout_s is None else now + timeout_s)
        self._open.append(wait)
        workflow.set_current_details(f"**{what}**{', ' if far else ''}{far}")
        try:
            yield
        finally:
            self._open.remove(wait)
