"""A supervised run: one activity for the steps up to each version, until the last one is made.

Invariants: what to do next is read from the store before each thing that is done, so a run that was
cancelled, terminated, failed or reset anywhere resumes after its newest version; payloads are ids
and counts, whatever the size of the data; every wait has a name and an owner.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import trainer_queue
    from mainspring.protocol.activities import (
        PREPARE_POLICY,
        SET_CAMPAIGN_STATUS,
        SFT_STEPS,
        STEP_TIMEOUT_S,
        SURVEY_SFT,
    )
    from mainspring.protocol.campaign import CampaignProgress, CampaignRef, StatusInput
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.sft import SftState, SftStepsInput, SftSurvey, SftSurveyInput
    from mainspring.status import CampaignStatus
    from workflows import activity_calls
    from workflows.pausing import Pausing
    from workflows.waiting import Waits


@workflow.defn(name=Workflow.SFT)
class SftWorkflow:
    @workflow.init
    def __init__(self, state: SftState) -> None:
        self._state = state
        self._seen: SftSurvey | None = None
        self._waits = Waits()
        self._pausing = Pausing()

    @workflow.run
    async def run(self, state: SftState) -> CampaignProgress:
        try:
            while await self._do_next():
                if workflow.info().is_continue_as_new_suggested():
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    workflow.continue_as_new(state)
        except (FailureError, asyncio.CancelledError) as error:
            cancelled = is_cancelled_exception(error)
            async with self._pausing.ending():
                await self._set_status(
                    CampaignStatus.CANCELLED if cancelled else CampaignStatus.FAILED,
                    None if cancelled else activity_calls.end_text(error),
                )
            raise
        async with self._pausing.ending():
            await self._set_status(CampaignStatus.FINISHED)
        return self.progress()

    async def _do_next(self) -> bool:
        """One thing that the store shows is missing; False when nothing is."""
        activity_calls.raise_if_cancelled()
        state = self._state
        seen = self._seen = await activity_calls.store(
            SURVEY_SFT,
            SftSurveyInput(
                campaign=state.campaign,
                status=CampaignStatus.PAUSED if state.paused else CampaignStatus.RUNNING,
            ),
        )
        queue = trainer_queue(state.campaign)
        if seen.version is None:
            with self._wait("preparing the first version", queue, STEP_TIMEOUT_S):
                await activity_calls.anywhere(
                    PREPARE_POLICY,
                    CampaignRef(campaign=state.campaign),
                    summary="the first version",
                )
        elif seen.version >= seen.num_steps:
            return False
        elif state.paused:
            with self._wait("paused: waiting for `mainspring campaign resume`"):
                await workflow.wait_condition(lambda: not state.paused)
        else:
            steps = f"steps {seen.version + 1} to {seen.next_version}"
            with self._wait(f"training {steps}", queue, STEP_TIMEOUT_S):
                await activity_calls.anywhere(
                    SFT_STEPS,
                    SftStepsInput(
                        campaign=state.campaign, version=seen.version, last=seen.next_version
                    ),
                    summary=steps,
                )
        return True

    def _wait(self, what: str, queue: str | None = None, timeout_s: float | None = None):
        far = ""
        if self._seen is not None:
            far = f"{self._seen.version or 0} of {self._seen.num_steps} steps done"
        return self._waits.on(what, queue=queue, timeout_s=timeout_s, far=far)

    async def _set_status(self, status: CampaignStatus, error: str | None = None) -> None:
        await activity_calls.store(
            SET_CAMPAIGN_STATUS,
            StatusInput(campaign=self._state.campaign, status=status, error=error),
        )

    @workflow.signal
    async def set_paused(self, paused: bool) -> None:
        """As `pause` and `resume`; it is recorded also while no worker runs."""
        self._state.paused = paused
        await self._pausing.write(lambda: self._state.paused, self._set_status)

    @workflow.update
    async def pause(self) -> CampaignProgress:
        """The step that is under way ends; the weights after it are kept as a version."""
        self._state.paused = True
        await self._set_status(CampaignStatus.PAUSED)
        return self.progress()

    @workflow.update
    async def resume(self) -> CampaignProgress:
        self._state.paused = False
        await self._set_status(CampaignStatus.RUNNING)
        return self.progress()

    @workflow.query
    def progress(self) -> CampaignProgress:
        wait, seen = self._waits.newest, self._seen
        return CampaignProgress(
            step=(seen.version or 0) if seen else 0,
            num_steps=seen.num_steps if seen else 0,
            in_flight=0,
            ready=0,
            paused=self._state.paused,
            doing=wait.what if wait else "looking for what is next",
            waiting_for=wait.what if wait else None,
            waiting_since=wait.since if wait else None,
            waiting_queue=wait.queue if wait else None,
            waiting_until=wait.until if wait else None,
        )
