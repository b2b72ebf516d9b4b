"""A campaign that trains another one's stored batches again: one activity for each step.

Invariants: all steps are planned when it is stored, so nothing is played, published or measured;
the trainer's worker runs it, and no other one is needed.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import trainer_queue
    from mainspring.protocol.activities import STEP_TIMEOUT_S, SURVEY_RETRAIN, TRAIN_STEP
    from mainspring.protocol.campaign import CampaignProgress, StepInput
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.retrain import RetrainState, RetrainSurveyInput
    from workflows import activity_calls
    from workflows.stepped import SteppedRun


@workflow.defn(name=Workflow.RETRAIN)
class RetrainWorkflow(SteppedRun):
    @workflow.init
    def __init__(self, state: RetrainState) -> None:
        super().__init__(state)

    @workflow.run
    async def run(self, state: RetrainState) -> CampaignProgress:
        return await self._until_done()

    async def _do_next(self) -> bool:
        activity_calls.raise_if_cancelled()
        campaign = self._state.campaign
        seen = await activity_calls.store(
            SURVEY_RETRAIN, RetrainSurveyInput(campaign=campaign, status=self._status)
        )
        self._step, self._num_steps = seen.version, seen.num_steps
        if seen.version >= seen.num_steps:
            return False
        if self._state.paused:
            await self._stay_paused()
            return True
        step = seen.version + 1
        with self._wait(f"training step {step}", trainer_queue(campaign), STEP_TIMEOUT_S):
            await activity_calls.anywhere(
                TRAIN_STEP,
                StepInput(campaign=campaign, step=step, num_groups=0),
                summary=f"step {step} on a stored batch",
            )
        return True
