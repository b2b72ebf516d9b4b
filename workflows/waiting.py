"""A workflow's waits, in words that a person can act on.

Invariant: every wait has a name and an owner, or looks again after a while; the newest open one is
shown in Temporal's UI and answers the `progress` query.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.protocol.campaign import CampaignProgress


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

    def progress(
        self, step: int, num_steps: int, *, paused: bool, in_flight: int = 0, ready: int = 0
    ) -> CampaignProgress:
        """Answer of the `progress` query."""
        wait = self.newest
        return CampaignProgress(
            step=step,
            num_steps=num_steps,
            in_flight=in_flight,
            ready=ready,
            paused=paused,
            doing=wait.what if wait else "looking for what is next",
            waiting_for=wait.what if wait else None,
            waiting_since=wait.since if wait else None,
            waiting_queue=wait.queue if wait else None,
            waiting_until=wait.until if wait else None,
        )

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
