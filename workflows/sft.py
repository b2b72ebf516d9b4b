"""A supervised run: one activity for the steps up to each version, until the last one is made.

Invariant: payloads are ids and counts, whatever the size of the data.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import trainer_queue
    from mainspring.protocol.activities import (
        PREPARE_POLICY,
        SFT_STEPS,
        STEP_TIMEOUT_S,
        SURVEY_SFT,
    )
    from mainspring.protocol.campaign import CampaignProgress, CampaignRef
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.sft import SftState, SftStepsInput, SftSurveyInput
    from mainspring.status import CampaignStatus
    from workflows import activity_calls
    from workflows.stepped import SteppedRun


@workflow.defn(name=Workflow.SFT)
class SftWorkflow(SteppedRun):
    @workflow.init
    def __init__(self, state: SftState) -> None:
        super().__init__(state)

    @workflow.run
    async def run(self, state: SftState) -> CampaignProgress:
        return await self._until_done()

    async def _do_next(self) -> bool:
        activity_calls.raise_if_cancelled()
        campaign = self._state.campaign
        seen = await activity_calls.store(
            SURVEY_SFT, SftSurveyInput(campaign=campaign, status=self._status)
        )
        self._step, self._num_steps = seen.version or 0, seen.num_steps
        queue = trainer_queue(campaign)
        if seen.version is None:
            with self._wait("preparing the first version", queue, STEP_TIMEOUT_S):
                await activity_calls.anywhere(
                    PREPARE_POLICY, CampaignRef(campaign=campaign), summary="the first version"
                )
        elif seen.version >= seen.num_steps:
            return False
        elif self._state.paused:
            await self._stay_paused()
        else:
            steps = f"steps {seen.version + 1} to {seen.next_version}"
            with self._wait(f"training {steps}", queue, STEP_TIMEOUT_S):
                await activity_calls.anywhere(
                    SFT_STEPS,
                    SftStepsInput(campaign=campaign, version=seen.version, last=seen.next_version),
                    summary=steps,
                )
        return True

    @workflow.update
    async def pause(self) -> CampaignProgress:
        """For earlier command lines, as `resume`: those of today send `set_paused`."""
        self._state.paused = True
        await self._set_status(CampaignStatus.PAUSED)
        return self.progress()

    @workflow.update
    async def resume(self) -> CampaignProgress:
        self._state.paused = False
        await self._set_status(CampaignStatus.RUNNING)
        return self.progress()
