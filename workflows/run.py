"""A run: an evaluation, a verification or a regrade, in groups whose rollouts are children.

A campaign evaluates its policy with such a run as a child: one group, ahead of training, under the
policy version that is measured; it writes no status, as the row is the campaign's.

Invariants: at most `concurrency` rollouts are in flight; a group is stored when all rollouts of the
one before have begun, so that a straggler holds up nothing; before its history is large the
workflow lets what is in flight end and continues as new. State is one model; Postgres knows what
has ended, so a run that was cancelled, terminated, failed or reset resumes when it is started.
Without `cross_tests` in its state a run makes the calls that it made before there were any.
"""

import asyncio
from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from mainspring.ids import GRADE_QUEUE, ROLLOUT_QUEUE, GroupId, RolloutId
    from mainspring.protocol.activities import (
        CREATE_RUN_GROUP,
        CROSS_TEST,
        FINISH_GROUP,
        NEXT_CANDIDATES,
        SET_CAMPAIGN_STATUS,
    )
    from mainspring.protocol.campaign import FinishGroupInput, StatusInput
    from mainspring.protocol.cross_testing import CandidatesInput, CrossTestInput
    from mainspring.protocol.names import Workflow
    from mainspring.protocol.run import RunGroupInput, RunGroupResult, RunProgress, RunState
    from mainspring.status import CampaignStatus
    from workflows import activity_calls
    from workflows.pausing import Pausing
    from workflows.playing import EVALUATION_PRIORITY, TRAINING_PRIORITY, run_rollout


@workflow.defn(name=Workflow.RUN)
class RunWorkflow:
    @workflow.init
    def __init__(self, state: RunState) -> None:
        self._state = state
        self._slots = asyncio.Semaphore(state.concurrency)
        self._num_waiting = 0
        self._num_in_flight = 0
        self._num_begun = 0
        self._broken: str | None = None
        self._comparing: list[asyncio.Task[None]] = []
        self._pausing = Pausing()
        self._since = workflow.time()
        evaluation = state.evaluation
        self._policy_version = evaluation.policy_version if evaluation else 0
        self._priority = EVALUATION_PRIORITY if evaluation else TRAINING_PRIORITY

    @workflow.run
    async def run(self, state: RunState) -> RunProgress:
        playing: list[asyncio.Task[None]] = []
        try:
            if not state.paused:
                await self._set_status(CampaignStatus.RUNNING)
            is_last = False
            while not is_last and self._num_begun < state.rollouts_per_run:
                created = await activity_calls.store(
                    CREATE_RUN_GROUP,
                    RunGroupInput(
                        campaign=state.campaign,
                        index=state.next_group,
                        evaluation=state.evaluation,
                    ),
                )
                is_last = created.is_last or created.size == 0
                if created.size > 0:
                    state.next_group += 1
                    self._num_waiting += len(created.unfinished)
                    playing.append(asyncio.create_task(self._play(created)))
                    await self._until(lambda: self._num_waiting == 0)
            await self._until(lambda: all(task.done() for task in playing))
            await asyncio.gather(*playing)
            if is_last and not await self._compare():
                is_last = False
            if is_last:
                await self._pausing.end(self._set_status)
                return self.progress()
        except (FailureError, asyncio.CancelledError) as error:
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
            await self._pausing.end(self._set_status, error)
            raise
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(state)

    async def _compare(self) -> bool:
        """Run tests that rollouts wrote against each other's patches. False: the history is large,
        and the rest is for the next run."""
        plan = self._state.cross_tests
        num_compared = 0
        while plan is not None and num_compared < self._state.rollouts_per_run:
            ask = CandidatesInput(campaign=self._state.campaign, after=plan.after)
            found = (await activity_calls.store(NEXT_CANDIDATES, ask)).rollouts
            if not found:
                return True
            comparing = [
                asyncio.create_task(self._compare_one(rollout, plan.attempt_s)) for rollout in found
            ]
            self._comparing = comparing
            try:
                await asyncio.gather(*comparing)
            finally:
                for task in comparing:
                    task.cancel()
                await asyncio.gather(*comparing, return_exceptions=True)
                self._comparing = []
            plan.after = found[-1]
            num_compared += len(found)
        return plan is None

    async def _compare_one(self, rollout: RolloutId, attempt_s: float) -> None:
        async with self._slots:
            await workflow.wait_condition(lambda: not self._state.paused)
            await activity_calls.anywhere(
                CROSS_TEST,
                CrossTestInput(rollout=rollout),
                own_s=attempt_s,
                summary=f"tests of others with the patch of {rollout}",
            )
            self._since = workflow.time()

    async def _until(self, condition: Callable[[], bool]) -> None:
        await workflow.wait_condition(lambda: condition() or self._broken is not None)
        activity_calls.raise_if_broken([self._broken])

    async def _play(self, created: RunGroupResult) -> None:
        cancelled = False
        try:
            await asyncio.gather(
                *(self._play_one(created.group, rollout) for rollout in created.unfinished)
            )
        except asyncio.CancelledError:
            cancelled = True
        await activity_calls.store(
            FINISH_GROUP,
            FinishGroupInput(group=created.group, cancelled=cancelled),
        )
        if cancelled:
            raise asyncio.CancelledError

    async def _play_one(self, group: GroupId, index: int) -> None:
        async with self._slots:
            await workflow.wait_condition(lambda: not self._state.paused)
            self._num_waiting -= 1
            self._num_begun += 1
            self._num_in_flight += 1
            self._note()
            result = await run_rollout(
                self._state.campaign,
                group,
                index,
                self._policy_version,
                self._state.summary,
                priority=self._priority,
            )
            self._broken = self._broken or (result and result.broken)
            self._num_in_flight -= 1
            self._note()

    def _note(self) -> None:
        self._since = workflow.time()
        workflow.set_current_details(
            f"**{self._num_in_flight}** rollouts in flight, {self._num_waiting} of "
            f"{self._state.next_group} groups wait"
        )

    async def _set_status(self, status: CampaignStatus, error: str | None = None) -> None:
        if self._state.evaluation is not None:
            return
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
    async def pause(self) -> RunProgress:
        """No new rollouts; those in flight run to their end."""
        self._state.paused = True
        await self._set_status(CampaignStatus.PAUSED)
        return self.progress()

    @workflow.update
    async def resume(self) -> RunProgress:
        self._state.paused = False
        await self._set_status(CampaignStatus.RUNNING)
        return self.progress()

    @workflow.query
    def progress(self) -> RunProgress:
        return RunProgress(
            num_groups=self._state.next_group,
            num_waiting=self._num_waiting,
            num_in_flight=self._num_in_flight,
            paused=self._state.paused,
            waiting_for=self._waiting_for(),
            waiting_since=self._since,
            waiting_queue=self._waiting_queue(),
        )

    def _waiting_queue(self) -> str | None:
        if self._state.paused:
            return None
        return GRADE_QUEUE if self._comparing else ROLLOUT_QUEUE

    def _waiting_for(self) -> str:
        num_left = sum(not task.done() for task in self._comparing)
        if num_left and not self._state.paused:
            return f"running tests of other rollouts against {num_left} patches"
        if self._state.paused and not self._num_in_flight:
            return "paused: waiting for `mainspring campaign resume`"
        return f"waiting for {self._num_in_flight} rollouts in flight"
