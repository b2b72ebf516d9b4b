"""Judgements of one rollout: asked while it continues, waited for before its end is written.

Invariants: no turn waits for a judgement; without a judge nothing here does anything, so that
histories of campaigns without one are as they were; each judgement is bounded by its own retries; a
rollout that is cancelled, fails or begins a new epoch cancels those under way. Scores are in the
store; a workflow only learns whether one is missing that its campaign requires.
"""

import asyncio
from collections.abc import Sequence

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mainspring.config.agents.judges import JudgeScope
    from mainspring.protocol.activities import JUDGE
    from mainspring.protocol.judging import JudgeInput, JudgePlan
    from mainspring.protocol.rollout import RolloutInput
    from mainspring.status import FaultKind, StopReason
    from mainspring.trajectories.tally import Tally
    from workflows import activity_calls


class Judging:
    def __init__(self, start: RolloutInput) -> None:
        self._start = start
        self._plans: Sequence[JudgePlan] = ()
        self._epoch = 0
        self._under_way: list[asyncio.Task[str | None]] = []
        """Each gives why the rollout is to be masked, or nothing."""

    def begin(self, plans: Sequence[JudgePlan], epoch: int) -> None:
        """An epoch. Judgements of an earlier one count for nothing."""
        self.cancel()
        self._plans, self._epoch = plans, epoch

    def took(self, first: int, tally: Tally) -> None:
        """Turns from number `first` on were taken. Not judged: the one that submits, and those
        that ran nothing, as far as it is known here."""
        end = tally.num_turns - (tally.stop is StopReason.SUBMITTED)
        for call in range(first, end):
            if call + 1 < tally.num_turns or not tally.num_format_errors:
                self._ask(JudgeScope.TURNS, call, f"turn {call + 1}")

    def ended(self) -> None:
        """The rollout's last turn is stored, and its patch."""
        self._ask(JudgeScope.ROLLOUT, 0, "rollout")

    async def done(self) -> str | None:
        """Wait for all. Why the rollout is to be masked; None: it can be scored."""
        if not self._under_way:
            return None
        activity_calls.raise_if_cancelled()  # the grading may have swallowed it
        num_open = sum(not task.done() for task in self._under_way)
        if num_open:
            workflow.set_current_details(f"waiting for {num_open} judgements")
        faults = await asyncio.gather(*self._under_way)
        activity_calls.raise_if_cancelled()
        return next((fault for fault in faults if fault is not None), None)

    def cancel(self) -> None:
        """Give up those under way. None is waited for: what they would still write is refused when
        the rollout has ended."""
        for task in self._under_way:
            task.cancel()
            task.add_done_callback(_forget)
        self._under_way = []

    def _ask(self, of: JudgeScope, call: int, what: str) -> None:
        for plan in self._plans:
            if plan.of is of:
                self._under_way.append(asyncio.create_task(self._judge(plan, call, what)))

    async def _judge(self, plan: JudgePlan, call: int, what: str) -> str | None:
        result = await activity_calls.anywhere(
            JUDGE,
            JudgeInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                judge=plan.judge,
                of=plan.of,
                call=call,
            ),
            own_s=plan.attempt_s,
            summary=f"judge {plan.judge}: {what}",
            # The server tells an activity that waits for its next try only then.
            cancelled=workflow.ActivityCancellationType.TRY_CANCEL,
        )
        if not plan.required or not result.is_judged or result.score is not None:
            return None
        return (
            f"{FaultKind.JUDGE_MISSING.value}: judge {plan.judge} gave no vote on {what}: "
            f"{result.missing}"
        )


def _forget(task: asyncio.Task[str | None]) -> None:
    """Take the failure of what was given up: asyncio would log it as lost."""
    if not task.cancelled():
        task.exception()
