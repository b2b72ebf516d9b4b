"""The frame of a run that trains without rollouts, on samples or batches that are stored already.

Invariants: what to do next is read from the store before each thing that is done, so a run that was
cancelled, terminated, failed or reset anywhere resumes after its newest version; every wait has a
name and an owner. Imported by the workflows `sft` and `retrain`, which add what a step is.
"""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import CampaignId
    from mainspring.protocol.activities import SET_CAMPAIGN_STATUS
    from mainspring.protocol.campaign import CampaignProgress, StatusInput
    from mainspring.status import CampaignStatus
    from workflows import activity_calls
    from workflows.pausing import Pausing
    from workflows.waiting import Waits


class SteppedState(Protocol):
    """Carried over continue-as-new."""

    @property
    def campaign(self) -> CampaignId: ...

    paused: bool


class SteppedRun(ABC):
    def __init__(self, state: SteppedState) -> None:
        self._state = state
        self._step = 0
        """The newest version that the store has shown."""
        self._num_steps = 0
        self._waits = Waits()
        self._pausing = Pausing()

    @abstractmethod
    async def _do_next(self) -> bool:
        """One thing that the store shows is missing; False when nothing is."""

    async def _until_done(self) -> CampaignProgress:
        """Writes the end into the store. Raises what ended the run before it was finished."""
        try:
            while await self._do_next():
                if workflow.info().is_continue_as_new_suggested():
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    workflow.continue_as_new(self._state)
        except (FailureError, asyncio.CancelledError) as error:
            await self._pausing.end(self._set_status, error)
            raise
        await self._pausing.end(self._set_status)
        return self.progress()

    @property
    def _status(self) -> CampaignStatus:
        """Status that its row is to have while it runs."""
        return CampaignStatus.PAUSED if self._state.paused else CampaignStatus.RUNNING

    async def _stay_paused(self) -> None:
        with self._wait("paused: waiting for `mainspring campaign resume`"):
            await workflow.wait_condition(lambda: not self._state.paused)

    def _wait(
        self, what: str, queue: str | None = None, timeout_s: float | None = None
    ) -> AbstractContextManager[None]:
        far = f"{self._step} of {self._num_steps} steps done"
        return self._waits.on(what, queue=queue, timeout_s=timeout_s, far=far)

    async def _set_status(self, status: CampaignStatus, error: str | None = None) -> None:
        await activity_calls.store(
            SET_CAMPAIGN_STATUS,
            StatusInput(campaign=self._state.campaign, status=status, error=error),
        )

    @workflow.signal
    async def set_paused(self, paused: bool) -> None:
        """It is recorded also while no worker runs. The step that is under way ends; the weights
        after it are kept as a version."""
        self._state.paused = paused
        await self._pausing.write(lambda: self._state.paused, self._set_status)

    @workflow.query
    def progress(self) -> CampaignProgress:
        return self._waits.progress(self._step, self._num_steps, paused=self._state.paused)
