"""Requests for the policy that one rollout's agent asks: accepted, bounded, answered, accounted.

Invariants: a request is answered by one activity, however often it is told of; one beyond a limit
is answered by none; time in which requests only waited for an engine is no time of the rollout.
Shared by what plays: a program in a sandbox (`program`) and an agent elsewhere (`remote`).
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from mainspring.programs.record import RequestState
    from mainspring.protocol.activities import ANSWER_CALL
    from mainspring.protocol.program import AnswerInput, AnswerResult, ProgramLimits
    from mainspring.protocol.rollout import BeginResult, RolloutInput
    from mainspring.status import StopReason
    from workflows import activity_calls

MINUTE_S = 60.0


class Answering:
    def __init__(self, start: RolloutInput) -> None:
        self._start = start
        self._begin: BeginResult | None = None
        self._limits: ProgramLimits | None = None
        self._epoch = 0
        self._early: list[tuple[int, int | None]] = []
        """Requests told of before it is known what plays, with their epochs."""
        self._listens = True
        """False from the end of the last life on: what is asked then has no asker any more."""
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._answered: set[int] = set()
        self._refused: set[int] = set()
        """Those of them that had no reply."""
        self._num_refused_again = 0
        """Times that these were asked again: each counts as a call."""
        self._times: deque[float] = deque()
        """Times of the requests of the last minute."""
        self.beyond: set[int] = set()
        """Requests that a limit forbids, and which have no reply."""
        self.stop: StopReason | None = None
        """Why this life is to end."""
        self.limit: StopReason | None = None
        """The limit that was reached, in this life or an earlier one."""
        self.failure: BaseException | None = None
        self.place = "-"
        """Where the agent is, for people."""
        self._idle_until = 0.0
        """Up to when time was counted as waited or as used."""
        self._waited_s = 0.0
        """For engines that did not answer; no time of the rollout."""
        self.generate_s = 0.0
        self._cost = 0.0
        """Dollars of the replies."""
        self.num_asked = 0
        """Requests that were taken on."""
        self.last_answer = 0.0
        """When the newest reply came."""
        self._left_s: float | None = None
        """As `be_straggler` was told."""
        self._straggler_at_s: float | None = None
        """Where that ends, of the seconds that a life uses."""

    @property
    def num_calls(self) -> int:
        return len(self._answered)

    @property
    def is_idle(self) -> bool:
        return not self._answering

    @property
    def num_last_minute(self) -> int:
        return len(self._times)

    def be_straggler(self, left_s: float) -> None:
        """Most of the rollout's group has ended: `left_s` more seconds, waits not counted."""
        self._left_s = left_s

    def ask(self, number: int, epoch: int | None) -> None:
        """The agent asks `number`, now or again. A reset brings the signals of earlier epochs
        again, whose numbers are of other requests. None: a gateway that tells no epoch."""
        if self._begin is None or self._limits is None:
            self._early.append((number, epoch))
        elif epoch not in (None, self._epoch) or not self._listens:
            return
        elif number not in self._answered and number not in self._answering:
            self._accept(number, self._begin, self._limits)

    def ask_again(self, number: int, epoch: int | None) -> None:
        """The same life asks `number` again. The gateway answers what is stored, and there is no
        activity: without a bound an agent could ask for it without end."""
        is_known = number in self._answered or number in self._answering
        if self._begin is None or self._limits is None or not is_known:
            self.ask(number, epoch)
        elif epoch in (None, self._epoch) and self._listens:
            self._num_refused_again += number in self._refused
            self._is_admitted(self._begin, self._limits, num_new=0)

    def begin(self, begin: BeginResult, limits: ProgramLimits, epoch: int) -> None:
        """From now on requests are answered, those that came before first."""
        self._begin, self._limits, self._epoch = begin, limits, epoch
        self._room = asyncio.Semaphore(limits.parallel_requests)
        early, self._early = self._early, []
        for number, of_epoch in early:
            self.ask(number, of_epoch)

    def begin_life(self) -> float:
        """The time at which it begins."""
        self.stop = None
        self._listens = True
        self._waited_s = 0.0
        self._idle_until = workflow.time()
        return self._idle_until

    async def end(self) -> None:
        """The last life has ended: requests that nothing waits for are given up. Those of a life
        that was lost are not: the next life asks them again."""
        self._listens = False
        under_way = [*self._answering.values()]
        for answering in under_way:
            answering.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def until_over(self, is_done: Callable[[], bool], started: float, limit_s: float) -> None:
        """Until the life is done, is to stop (`stop`), or cannot be answered (`failure`)."""

        def is_over() -> bool:
            return is_done() or self.stop is not None or self.failure is not None

        def used_s() -> float:
            return workflow.time() - started - self._waited_s

        while not is_over():
            left_then = self._left_s
            end_s = min(limit_s, self._until_straggler_s(used_s()))
            left_s = end_s - used_s()
            if left_s <= 0:
                # What an engine's outage took is known when the reply has come.
                await self._until_answered(is_over)
                if used_s() >= end_s and not is_over():
                    late = StopReason.WALL_TIME if used_s() >= limit_s else StopReason.STRAGGLER
                    self.limit = self.limit or late
                    self.stop = self.limit
                continue
            try:
                await workflow.wait_condition(
                    lambda left_then=left_then: is_over() or self._left_s != left_then,
                    timeout=left_s,
                )
            except TimeoutError:
                continue

    def _until_straggler_s(self, used_s: float) -> float:
        """Where a straggler's time ends, of the seconds of this life."""
        if self._left_s is None:
            return math.inf
        if self._straggler_at_s is None:
            self._straggler_at_s = used_s + self._left_s
        return self._straggler_at_s

    def _accept(self, number: int, begin: BeginResult, limits: ProgramLimits) -> None:
        if self._is_admitted(begin, limits, num_new=1):
            self.num_asked += 1
            self._answering[number] = asyncio.create_task(self._answer(number, begin))
        else:
            self.beyond.add(number)

    def _is_admitted(self, begin: BeginResult, limits: ProgramLimits, *, num_new: int) -> bool:
        """Count one request more, and `num_new` calls; past a limit this life is to end."""
        now = workflow.time()
        self._times.append(now)
        while self._times[0] < now - MINUTE_S:
            self._times.popleft()
        if self.limit is None:
            num_known = len(self._answered) + len(self._answering) + self._num_refused_again
            if num_known + num_new > begin.step_limit:
                self.limit = StopReason.STEP_LIMIT
            elif begin.cost_limit is not None and self._cost >= begin.cost_limit:
                self.limit = StopReason.COST_LIMIT
            elif len(self._times) > limits.requests_per_minute:
                self.limit = StopReason.REQUEST_RATE
        if self.limit is not None:
            self.stop = self.limit
        return self.limit is None

    async def _until_answered(self, is_over: Callable[[], bool]) -> None:
        """All that is under way now; not what is asked meanwhile."""
        under_way = set(self._answering)
        await workflow.wait_condition(lambda: is_over() or not under_way & set(self._answering))

    async def _answer(self, number: int, begin: BeginResult) -> None:
        try:
            async with self._room:
                began = workflow.time()
                result = await self._reply(number, begin)  # also one that came after a cancel
            self._count(began, result.spent_s)
            self._answered.add(number)
            self._cost += result.cost
            if result.state is RequestState.REFUSED:
                self._refused.add(number)
            self.last_answer = workflow.time()
            if result.state is RequestState.STORED:
                workflow.set_current_details(
                    f"call **{self.num_calls}** of {begin.step_limit}, "
                    f"{result.num_prompt_tokens + result.num_completion_tokens} tokens, "
                    f"{self.place}: {result.summary}"
                )
        except FailureError as error:
            if not is_cancelled_exception(error):  # else it was given up, and nothing failed
                self.failure = self.failure or error
        finally:
            self._answering.pop(number, None)

    async def _reply(self, number: int, begin: BeginResult) -> AnswerResult:
        return await activity_calls.anywhere(
            ANSWER_CALL,
            AnswerInput(
                rollout=self._start.rollout,
                epoch=self._epoch,
                number=number,
                min_policy_version=self._start.min_policy_version,
            ),
            own_s=begin.request_timeout_s,
            summary=f"call {number + 1}",
        )

    def _count(self, began: float, spent_s: float) -> None:
        """Time in which requests only waited; what overlaps counts once."""
        now = workflow.time()
        self.generate_s += now - began
        since = max(began, self._idle_until)
        self._waited_s += max(0.0, now - since - spent_s)
        self._idle_until = max(self._idle_until, now)
