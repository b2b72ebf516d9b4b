"""A campaign that trains another one's stored batches again: one activity for each step.

Invariants: all steps are planned when it is stored, so nothing is played, published or measured;
where it stands is read from the store before each step, so one that was cancelled, terminated,
failed or reset anywhere resumes at its next step; the trainer's worker runs it, and no other one
is needed; every wait has a name and an owner.
"""

import asyncio

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import trainer_queue
    from mainspring.protocol.activities import (
        SET_CAMPAIGN_STATUS,
        STEP_TIMEOUT_S,
        SURVEY_RETRAIN,
        TRAIN_STEP,
    )
    from mainspring.protocol.campaign import CampaignProgress, StatusInput, StepInput
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.retrain import RetrainState, RetrainSurvey, RetrainSurveyInput
    from mainspring.status import CampaignStatus
    from workflows import activity_calls
    from workflows.pausing import Pausing
    from workflows.waiting import Waits


@workflow.defn(name=Workflow.RETRAIN)
class RetrainWorkflow:
    @workflow.init
    def __init__(self, state: RetrainState) -> None:
        self._state = state
        self._seen: RetrainSurvey | None = None
        self._waits = Waits()
        self._pausing = Pausing()

    @workflow.run
    async def run(self, state: RetrainState) -> CampaignProgress:
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
        """The next step, or a look while it is paused; False when all are done."""
        activity_calls.raise_if_cancelled()
        state = self._state
        seen = self._seen = await activity_calls.store(
            SURVEY_RETRAIN,
            RetrainSurveyInput(
                campaign=state.campaign,
                status=CampaignStatus.PAUSED if state.paused else CampaignStatus.RUNNING,
            ),
        )
        if seen.version >= seen.num_steps:
            return False
        if state.paused:
            with self._wait("paused: waiting for `mainspring campaign resume`"):
                await workflow.wait_condition(lambda: not state.paused)
            return True
        step = seen.version + 1
        queue = trainer_queue(state.campaign)
        with self._wait(f"training step {step}", queue, STEP_TIMEOUT_S):
            await activity_calls.anywhere(
                TRAIN_STEP,
                StepInput(campaign=state.campaign, step=step, num_groups=0),
                summary=f"step {step} on a stored batch",
            )
        return True

    def _wait(self, what: str, queue: str | None = None, timeout_s: float | None = None):
        far = "" if self._seen is None else f"{self._seen.version} of {self._seen.num_steps} steps"
        return self._waits.on(what, queue=queue, timeout_s=timeout_s, far=far)

    async def _set_status(self, status: CampaignStatus, error: str | None = None) -> None:
        await activity_calls.store(
            SET_CAMPAIGN_STATUS,
            StatusInput(campaign=self._state.campaign, status=status, error=error),
        )

    @workflow.signal
    async def set_paused(self, paused: bool) -> None:
        """It is recorded also while no worker runs. The step that is under way ends."""
        self._state.paused = paused
        await self._pausing.write(lambda: self._state.paused, self._set_status)

    @workflow.query
    def progress(self) -> CampaignProgress:
        wait, seen = self._waits.newest, self._seen
        return CampaignProgress(
            step=seen.version if seen else 0,
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
