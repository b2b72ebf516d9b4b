"""An agent outside plays a rollout: its session is offered, taken, answered, and ends.

Invariants: the store decides how a session ended, so whatever arrives in whichever order, one
result stands; a session that its agent left is offered again as the next life, which is answered
from the store as far as it asks the same; a session that waits to be taken waits as long as its
campaign does. What was told by a signal is looked up, so a signal that is lost costs time only.
"""

import asyncio
import contextlib
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from mainspring.programs.session import AGAIN, SessionEnd
    from mainspring.protocol.activities import (
        END_SESSION,
        OFFER_SESSION,
        READ_SESSION,
        REFUSE_REQUESTS,
    )
    from mainspring.protocol.program import ProgramLimits
    from mainspring.protocol.rollout import BeginResult, RolloutInput
    from mainspring.protocol.session import (
        EndSessionInput,
        EndSessionResult,
        RefuseInput,
        RemoteLimits,
        SessionRef,
        SessionState,
    )
    from mainspring.status import FaultKind, StopReason, Verdict
    from workflows import activity_calls
    from workflows.answering import Answering

FIRST_LOOK_S = 60.0
LONGEST_LOOK_S = 900.0
"""Between two looks at a session that nothing was told of."""
HAND_IN_S = 120.0
"""After the last call that its limits allow, to hand in what there is."""
USED_UP = (StopReason.STEP_LIMIT, StopReason.COST_LIMIT)
"""Limits after which an agent may still hand in what it has."""


@dataclass(frozen=True, slots=True)
class SessionResult:
    stop_reason: StopReason
    verdict: Verdict | None
    """Verdict of a reward; None: a patch is to be graded."""


class RemotePlay:
    def __init__(self, start: RolloutInput, answering: Answering) -> None:
        self._start = start
        self._answering = answering
        self._num_told = 0
        """Signals about the session."""

    def tell(self) -> None:
        """The session was taken, or has ended."""
        self._num_told += 1

    async def play(
        self, begin: BeginResult, program: ProgramLimits, limits: RemoteLimits, epoch: int
    ) -> SessionResult:
        """Until a result is stored. Raises ActivityError, and SessionAbandoned when agents left
        the session or told that they failed."""
        self._answering.begin(begin, program, epoch)
        try:
            return await self._live(begin, program, limits, epoch)
        finally:
            await self._answering.end()

    async def _live(
        self, begin: BeginResult, program: ProgramLimits, limits: RemoteLimits, epoch: int
    ) -> SessionResult:
        life = lives_then = calls_then = 0
        while True:
            ref = SessionRef(rollout=self._start.rollout, epoch=epoch, life=life)
            ended = await self._one_life(ref, begin, program, limits)
            if ended.ending is SessionEnd.ERROR:
                raise self._abandoned(f"its agent told: {ended.note or 'nothing'}")
            if ended.ending not in AGAIN:
                return SessionResult(self._stop_reason(ended.ending), ended.verdict)
            if self._answering.num_calls > calls_then:
                calls_then, lives_then = self._answering.num_calls, life
            life += 1
            if life - lives_then >= limits.lives:
                raise self._abandoned(
                    f"{limits.lives} sessions in a row ended without anything new, the last one "
                    f"{ended.ending}"
                )

    def _stop_reason(self, ending: SessionEnd) -> StopReason:
        limit = self._answering.limit
        if ending is SessionEnd.LIMIT:
            return limit or StopReason.WALL_TIME
        # A patch that came in time beats the clock.
        return limit if limit is not None and limit in USED_UP else StopReason.SUBMITTED

    def _abandoned(self, why: str) -> ApplicationError:
        return ApplicationError(
            f"rollout {self._start.rollout}: {why}",
            type=FaultKind.SESSION_ABANDONED,
            non_retryable=True,
        )

    async def _one_life(
        self, ref: SessionRef, begin: BeginResult, program: ProgramLimits, limits: RemoteLimits
    ) -> EndSessionResult:
        workflow.set_current_details("its session is offered to agents outside")
        state = await self._until_taken(ref)
        started = self._answering.begin_life() - state.taken_s
        self._answering.place = state.taken_by or "an agent outside"
        watching = asyncio.create_task(self._watch(ref, limits.silence_s))
        try:
            await self._answering.until_over(watching.done, started, begin.rollout_timeout_s)
            if self._answering.failure is not None:
                raise self._answering.failure
            if self._answering.stop in USED_UP:
                what = f"the {begin.step_limit} calls"
                if self._answering.stop is StopReason.COST_LIMIT:
                    what = f"the {begin.cost_limit:g} dollars"
                await self._until_handed_in(ref, watching, what, program)
            ending = watching.result() if watching.done() else SessionEnd.LIMIT
        finally:
            watching.cancel()
        activity_calls.raise_if_cancelled()
        stop = self._answering.stop
        return await activity_calls.store(
            END_SESSION,
            EndSessionInput(
                **ref.model_dump(),
                ending=ending,
                note=f"nothing was handed in: {stop}" if ending is SessionEnd.LIMIT else "",
            ),
            summary=f"session {ref.life + 1}: {ending}",
        )

    async def _until_taken(self, ref: SessionRef) -> SessionState:
        state = await activity_calls.store(
            OFFER_SESSION, ref, summary=f"session {ref.life + 1}: offered"
        )
        wait_s = FIRST_LOOK_S
        while not state.is_taken and state.ending is None:
            num_told, num_asked = self._num_told, self._answering.num_asked
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda num_told=num_told, num_asked=num_asked: (
                        self._num_told != num_told or self._answering.num_asked != num_asked
                    ),
                    timeout=wait_s,
                )
            wait_s = min(2 * wait_s, LONGEST_LOOK_S)
            state = await activity_calls.store(READ_SESSION, ref)
        return state

    async def _watch(self, ref: SessionRef, silence_s: float) -> SessionEnd:
        """Until the session has ended in the store, or its agent is silent."""
        while True:
            num_told = self._num_told
            state = await activity_calls.store(READ_SESSION, ref)
            if state.ending is not None:
                return state.ending
            silent_s = min(state.silent_s, workflow.time() - self._answering.last_answer)
            if not self._answering.is_idle:
                silent_s = 0.0  # it waits for a reply
            if silent_s >= silence_s:
                return SessionEnd.SILENT
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda num_told=num_told: self._num_told != num_told,
                    timeout=silence_s - silent_s,
                )

    async def _until_handed_in(
        self,
        ref: SessionRef,
        watching: asyncio.Task[SessionEnd],
        what: str,
        program: ProgramLimits,
    ) -> None:
        """The agent is told that it has no more of `what`, and may hand in what it has."""
        until = workflow.time() + HAND_IN_S
        while not watching.done():
            if beyond := sorted(self._answering.beyond):
                self._answering.beyond.clear()
                await activity_calls.store(
                    REFUSE_REQUESTS,
                    RefuseInput(
                        rollout=ref.rollout,
                        epoch=ref.epoch,
                        numbers=beyond,
                        reason=f"{what} of this session are used up: hand in what there is",
                    ),
                )
            left_s = until - workflow.time()
            if left_s <= 0 or self._answering.num_last_minute > program.requests_per_minute:
                return
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: watching.done() or bool(self._answering.beyond), timeout=left_s
                )
