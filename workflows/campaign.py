"""A campaign: keeps groups in flight within the staleness bound, feeds the trainer, evaluates.

Invariants: what to do next is read from the store before each thing that is done (`Survey`), so a
campaign that was cancelled, terminated, failed or reset anywhere resumes at its next step; step n
is planned in Postgres before it is trained and makes policy version n; groups of a version are
admitted once it is published; a reproducible campaign publishes a version once the groups that need
the one before are in (`algorithms.schedule`); every wait has a name and an owner. State is one
model.
"""

import asyncio
import contextlib
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import ROLLOUT_QUEUE, group_id, group_workflow, trainer_queue
    from mainspring.protocol.activities import (
        PLAN_STEP,
        PREPARE_POLICY,
        SET_CAMPAIGN_STATUS,
        STEP_TIMEOUT_S,
        SURVEY_CAMPAIGN,
        TRAIN_STEP,
    )
    from mainspring.protocol.campaign import (
        BatchDropped,
        CampaignProgress,
        CampaignRef,
        CampaignState,
        GroupDone,
        PlanResult,
        StatusInput,
        StepInput,
        Survey,
        SurveyInput,
    )
    from mainspring.protocol.names import NOTICE, Workflow
    from mainspring.status import CampaignStatus
    from workflows import activity_calls
    from workflows.admitting import GroupAdmission
    from workflows.measuring import (
        evaluation_groups,
        left_without_memory,
        measure,
        publish,
        publish_at_the_end,
    )
    from workflows.pausing import Pausing
    from workflows.playing import cancel_elsewhere
    from workflows.waiting import Waits

STEPS_PER_RUN = 200
"""Steps before continue-as-new at the latest: about 3,000 events, below the server's warning."""
LOOK = timedelta(seconds=60)
"""Groups report by signal; what changed without one is noticed after this."""
CANCELLED = timedelta(seconds=20)
"""For cancelled groups to report, before the campaign starts anew."""
LOOK_AT_FAILURE = "look at the store after a failure"
"""Patch: a failure may come from what a restored store lacks."""
SHORTENED = "cancel the groups of a campaign that was shortened"
"""Patch: a change may take away the steps that groups are played for."""
MASKED_ROUNDS = 2
"""Times everything in flight may end masked in a row before the campaign fails."""


@workflow.defn(name=Workflow.CAMPAIGN)
class CampaignWorkflow:
    @workflow.init
    def __init__(self, state: CampaignState) -> None:
        self._state = state
        self._seen = Survey(version=None)
        self._waits = Waits()
        self._admission = GroupAdmission(state)
        self._changed = False
        self._dropped: set[int] = set()
        self._steps_in_run = 0
        self._is_ahead = False
        self._is_prolonged = False
        self._pausing = Pausing()

    @workflow.run
    async def run(self, state: CampaignState) -> CampaignProgress:
        if state.since is None:
            state.since = workflow.time()
        if state.notice is not None:
            workflow.upsert_memo({NOTICE: state.notice})
        self._admission.begin()
        try:
            while await self._do_next():
                if self._is_ahead:
                    await self._start_anew()
                if self._should_continue_as_new():
                    await self._admission.stop()
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    state.in_flight = sorted(self._admission.in_flight)
                    workflow.continue_as_new(state)
        except (FailureError, asyncio.CancelledError) as error:
            if not is_cancelled_exception(error) and workflow.patched(LOOK_AT_FAILURE):
                await self._start_anew_if_ahead()
            await self._admission.stop()
            await self._cancel_groups()
            await publish_at_the_end(state, self._seen.version)
            await self._pausing.end(self._set_status, error)
            raise
        await self._admission.stop()
        if self._seen.running and workflow.patched(SHORTENED):
            await self._cancel_groups()  # it was shortened: no step takes them
        await self._pausing.end(self._set_status)
        if self._is_prolonged:
            await workflow.wait_condition(workflow.all_handlers_finished)
            workflow.continue_as_new(state)
        return self.progress()

    async def _do_next(self) -> bool:
        """One thing that the store shows is missing; False when nothing is."""
        activity_calls.raise_if_cancelled()
        state = self._state
        seen = await self._look()
        plan = state.plan
        served = seen.version if seen.served is None else seen.served
        if self._is_ahead:
            return True
        if seen.version is None or served is None:
            await self._prepare()
        elif served != state.published_version:
            await self._publish(served)
        elif served != state.measured_version:
            if served > 0:
                self._admission.open()
            await measure(state, seen, self._waits)
            state.measured_version = served
        elif served >= plan.num_steps:
            return False
        else:
            self._admission.open()
            if state.paused:
                await self._stay_paused()
            elif served < seen.version:
                await self._wait_for_groups()
            else:
                await self._one_step(seen.version + 1)
        return True

    async def _look(self) -> Survey:
        """Where the campaign stands now. Raises when it must not continue."""
        state, plan = self._state, self._state.plan
        seen = await self._survey()
        if self._is_ahead:
            return seen
        self._admission.raise_if_failed()
        activity_calls.raise_if_broken([state.broken])
        bound = MASKED_ROUNDS * (plan.max_staleness + 1) * plan.groups_per_step
        if seen.num_masked_in_a_row >= bound:
            newest = f"; the newest fault is: {seen.masked_by}\n  " if seen.masked_by else ": "
            raise ApplicationError(
                f"in {seen.num_masked_in_a_row} groups in a row too few rollouts could be scored "
                f"(trainer.min_scored){newest}see the `fault` of their rollouts "
                "(`mainspring rollout list`), then start the campaign again",
                type="AllMasked",
                non_retryable=True,
            )
        if plan.max_flat_groups and seen.num_flat_in_a_row >= plan.max_flat_groups:
            ends = f": {seen.flat_as}" if seen.flat_as else ""
            raise ApplicationError(
                f"{seen.num_flat_in_a_row} groups in a row had equal rewards, "
                f"trainer.max_flat_groups is {plan.max_flat_groups}{ends}\n  there was nothing to "
                "learn: look at some of these rollouts (`mainspring rollout list`), then use "
                "easier or harder tasks, a larger trainer.group_size, or another trainer.filter",
                type="AllFlat",
                non_retryable=True,
            )
        return seen

    async def _survey(self) -> Survey:
        state = self._state
        self._changed = False
        before = self._admission.memory()
        self._seen = await activity_calls.store(
            SURVEY_CAMPAIGN,
            SurveyInput(
                campaign=state.campaign,
                since=state.since or 0.0,
                status=CampaignStatus.PAUSED if state.paused else CampaignStatus.RUNNING,
            ),
        )
        if self._seen.plan is not None and self._seen.plan != state.plan:
            state.plan = self._seen.plan
            self._admission.look()
        if self._seen.next_index is not None:
            self._admission.forget(before.ended.intersection(self._seen.running))
        self._is_ahead = before.is_ahead_of(self._seen) or self._is_unmeasured(self._seen)
        return self._seen

    def _is_unmeasured(self, seen: Survey) -> bool:
        """Whether the store lacks an evaluation of the served version that was complete."""
        served = seen.version if seen.served is None else seen.served
        if seen.next_index is None or served != self._state.measured_version or served is None:
            return False
        if self._state.notice is not None:
            return False  # known already: a second look must not start anew again
        groups = evaluation_groups(self._state.campaign, self._state.plan, served)
        return not set(groups).issubset(seen.evaluated)

    async def _start_anew_if_ahead(self) -> None:
        """After a failure: it may come from what a restored store lacks."""
        try:
            await self._survey()
        except FailureError as error:
            workflow.logger.warning("campaign %s: no look: %s", self._state.campaign, error)
            return
        if self._is_ahead:
            await self._start_anew()

    async def _start_anew(self) -> None:
        """Forget what the store does not have: it was restored from a backup. Groups in flight are
        cancelled, as what they have done is not stored, and are replaced. Never returns."""
        version = 0 if self._seen.version is None else self._seen.version
        notice = (
            f"resumed after step {version} with new groups: the store is older than Temporal "
            "(restored from a backup)"
        )
        workflow.logger.warning("campaign %s: %s", self._state.campaign, notice)
        await self._admission.stop()
        await self._cancel_groups()
        # A group that the store lacks cannot report.
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: not self._admission.in_flight, timeout=CANCELLED)
        await workflow.wait_condition(workflow.all_handlers_finished)
        state = self._state
        workflow.continue_as_new(
            CampaignState(
                campaign=state.campaign, plan=state.plan, paused=state.paused, notice=notice
            )
        )

    async def _prepare(self) -> None:
        queue = trainer_queue(self._state.campaign)
        with self._wait("preparing the first policy", queue, STEP_TIMEOUT_S):
            await activity_calls.anywhere(
                PREPARE_POLICY,
                CampaignRef(campaign=self._state.campaign),
                summary="the first policy",
            )

    async def _publish(self, version: int) -> None:
        await publish(self._state, version, self._waits, self._far())
        self._admission.look()

    async def _stay_paused(self) -> None:
        state = self._state
        with self._wait("paused: waiting for `mainspring campaign resume`"):
            await workflow.wait_condition(lambda: not state.paused or self._must_look())

    async def _one_step(self, number: int) -> None:
        state, plan = self._state, self._state.plan
        step = StepInput(campaign=state.campaign, step=number, num_groups=plan.groups_per_step)
        planned = PlanResult(groups=[])
        if self._seen.planned_step == number or self._seen.num_ready >= plan.groups_per_step:
            planned = await activity_calls.store(PLAN_STEP, step)
        if planned.groups:
            await self._train(step, len(planned.groups))
        else:
            await self._wait_for_groups()

    async def _wait_for_groups(self) -> None:
        missing = self._state.plan.groups_per_step - self._seen.num_ready
        with self._wait(f"waiting for {max(1, missing)} more groups", ROLLOUT_QUEUE):
            try:
                await workflow.wait_condition(self._must_look, timeout=LOOK)
            except TimeoutError:
                self._admission.look()

    async def _train(self, step: StepInput, num_groups: int) -> None:
        """Returns also when an operator dropped the step's batch; the next look finds that."""
        queue = trainer_queue(self._state.campaign)
        self._dropped.discard(step.step)
        training = asyncio.create_task(
            activity_calls.anywhere(
                TRAIN_STEP,
                step,
                summary=f"step {step.step} on {num_groups} groups",
            )
        )
        try:
            with self._wait(f"training step {step.step}", queue, STEP_TIMEOUT_S):
                await workflow.wait_condition(lambda: training.done() or step.step in self._dropped)
        finally:
            if not training.done():
                training.cancel()
            # The trainer lets go of the batch before anything else is planned.
            await asyncio.gather(training, return_exceptions=True)
            left_without_memory(self._state)
        self._steps_in_run += 1
        if self._state.notice is not None:
            self._state.notice = None
            workflow.upsert_memo({NOTICE: ""})
        error = None if training.cancelled() else training.exception()
        if not training.cancelled() and error is None and training.result().replaced:
            self._admission.look()  # there is room for other groups now
        if isinstance(error, ActivityError) and not is_cancelled_exception(error):
            seen = await self._look()
            if seen.planned_step == step.step and not self._is_ahead:
                raise error

    def _far(self) -> str:
        return f"{self._seen.version or 0} of {self._state.plan.num_steps} steps done"

    def _wait(self, what: str, queue: str | None = None, timeout_s: float | None = None):
        return self._waits.on(what, queue=queue, timeout_s=timeout_s, far=self._far())

    def _must_look(self) -> bool:
        return self._changed or self._admission.has_failed or self._state.broken is not None

    def _should_continue_as_new(self) -> bool:
        suggested = workflow.info().is_continue_as_new_suggested()
        return suggested or self._steps_in_run >= STEPS_PER_RUN

    async def _cancel_groups(self) -> None:
        for index in sorted(self._admission.in_flight.union(self._seen.running)):
            await cancel_elsewhere(group_workflow(group_id(self._state.campaign, index)))

    async def _set_status(self, status: CampaignStatus, error: str | None = None) -> None:
        written = await activity_calls.store(
            SET_CAMPAIGN_STATUS,
            StatusInput(campaign=self._state.campaign, status=status, error=error),
        )
        self._is_prolonged = written.is_prolonged

    @workflow.signal
    def group_done(self, done: GroupDone) -> None:
        self._state.broken = self._state.broken or done.broken
        self._admission.ended(done.index)
        self._changed = True

    @workflow.signal
    def batch_dropped(self, dropped: BatchDropped) -> None:
        """The plan of this step was taken back in the store: train something else."""
        self._dropped.add(dropped.step)
        self._changed = True
        self._admission.look()

    @workflow.signal
    def changed(self) -> None:
        """A field of the campaign was changed in the store: look at once."""
        self._changed = True

    @workflow.signal
    async def set_paused(self, paused: bool) -> None:
        """As `pause` and `resume`; it is recorded also while no worker runs."""
        self._state.paused = paused
        self._changed = True
        await self._pausing.write(lambda: self._state.paused, self._set_status)

    @workflow.update
    async def pause(self) -> CampaignProgress:
        """No new groups and no new steps; what is in flight runs to its end."""
        self._state.paused = self._changed = True
        await self._set_status(CampaignStatus.PAUSED)
        return self.progress()

    @workflow.update
    async def resume(self) -> CampaignProgress:
        self._state.paused = False
        await self._set_status(CampaignStatus.RUNNING)
        return self.progress()

    @workflow.query
    def progress(self) -> CampaignProgress:
        return self._waits.progress(
            self._seen.version or 0,
            self._state.plan.num_steps,
            paused=self._state.paused,
            in_flight=len(self._admission.in_flight),
            ready=self._seen.num_ready,
        )
