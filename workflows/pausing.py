"""The status of a run in the store: a pause asked for by signal, which is recorded while no worker
runs, and the end.

Invariants: of several signals the row shows the last; a pause that comes while a run ends never
overwrites its end. The updates `pause` and `resume` of earlier command lines write by themselves.
Imported by the workflows of campaigns, supervised runs and other runs.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.status import CampaignStatus
    from workflows import activity_calls


class SetStatus(Protocol):
    async def __call__(self, status: CampaignStatus, error: str | None = None) -> None: ...


class Pausing:
    def __init__(self) -> None:
        self._is_ending = False
        self._writer = asyncio.Lock()
        """One write of the status at a time: they run beside each other otherwise."""

    async def write(self, is_paused: Callable[[], bool], set_status: SetStatus) -> None:
        """Write the status as it is when its turn comes; not that of a run that ends."""
        async with self._writer:
            if not self._is_ending:
                await set_status(CampaignStatus.PAUSED if is_paused() else CampaignStatus.RUNNING)

    async def end(self, set_status: SetStatus, error: BaseException | None = None) -> None:
        """Write the end, after what is being written, and nothing after it. `error`: why it ended
        before it was finished."""
        self._is_ending = True
        async with self._writer:
            if error is None:
                await set_status(CampaignStatus.FINISHED)
            elif is_cancelled_exception(error):
                await set_status(CampaignStatus.CANCELLED)
            else:
                await set_status(CampaignStatus.FAILED, activity_calls.end_text(error))
